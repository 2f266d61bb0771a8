// The mpi engine: ranks are the processes of an MPI job (Open MPI, MPICH).
//
//   // Under mpirun -n 4:
//   TESSERA_ASSIGN_OR_RETURN(auto engine, CreateMpiEngine());
//   TESSERA_ASSIGN_OR_RETURN(auto communicator,
//                            Communicator::Create(std::move(engine)));
//
// Implements every collective and has point-to-point messages, so that
// Tessera's algorithms can run on it too. Initialises MPI if it is not
// initialised (mpi_types.h).
//
// Errors. A rank that is missing at the deadline causes DeadlineExceeded, which
// names all other ranks because MPI does not report which one is missing. An
// abort or an error on any rank reaches waiting ranks within about a
// millisecond. MPI cannot cancel a collective: after an error it may still
// write to the buffers of running operations, so keep them until the process
// ends.
//
// Subgroups: MPI_Comm_create_group has no deadline, so the members first
// exchange messages; if a member dies between the two, the others keep waiting.
// MPICH supports about 2000 groups per process.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_
#define TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_

#include <mpi.h>

#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// Must be equal on all ranks.
struct MpiOptions {
  // The ranks of the engine's world. The engine duplicates the communicator, so
  // its messages do not interfere with others.
  MPI_Comm communicator = MPI_COMM_WORLD;

  // If true, messages include their signature and collectives start with an
  // exchange of 32 bytes per rank, so that mismatched calls fail at once with
  // an error that shows both sides. Otherwise MPI detects some mismatches (a
  // message that is too long); others time out or stay undetected.
  bool check_signatures = false;

  // If true, collectives use MPI's blocking functions, for which MPI libraries
  // are tuned; deadlines, aborts and missing ranks are not detected during a
  // call. If false, they use non-blocking functions and poll until the
  // deadline.
  bool blocking = false;

  // The longest time to wait for the other ranks when creating the engine.
  absl::Duration timeout = absl::Seconds(30);

  // Larger counts are split. The default is MPI's limit.
  int largest_count = std::numeric_limits<int>::max();
};

// Every rank of the options' communicator calls it, in the same order relative
// to other calls on it. InvalidArgument if an option is invalid,
// FailedPrecondition if MPI cannot be used (StartMpi), DeadlineExceeded if
// ranks do not call it in time.
absl::StatusOr<std::unique_ptr<Engine>> CreateMpiEngine(
    const MpiOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_
