// What the mpi engine can be told.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_
#define TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_

#include <mpi.h>

#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// The same on every rank.
struct MpiOptions {
  // The ranks of the engine's world. It is duplicated: the engine's messages
  // and yours do not meet.
  MPI_Comm communicator = MPI_COMM_WORLD;

  // Every message brings its signature, and every collective begins with an
  // exchange of 32 bytes a rank: calls that do not match are errors at once,
  // which show both sides. Otherwise MPI notices some (a message too long), and
  // others at the deadline or never.
  bool check_signatures = false;

  // Collectives by MPI's blocking calls: the algorithms that the MPI library is
  // tuned for, but deadlines, aborts and missing ranks are not noticed during
  // one. False: by its non-blocking calls, asked until the deadline.
  bool blocking = false;

  // How long the ranks wait for each other when the engine is created.
  absl::Duration timeout = absl::Seconds(30);

  // Counts above it go in pieces. MPI's own limit is the default.
  int largest_count = std::numeric_limits<int>::max();
};

// mpi: ranks are the processes of an MPI job (Open MPI, MPICH).
//
//   // under mpirun -n 4
//   TESSERA_ASSIGN_OR_RETURN(auto engine, CreateMpiEngine());
//   TESSERA_ASSIGN_OR_RETURN(auto communicator,
//                            Communicator::Create(std::move(engine)));
//
// Implements every collective and has point-to-point messages, so that our
// algorithms run on it too. Starts MPI where nobody has (mpi_runtime.h).
//
// Errors. A rank that is missing at the deadline is a DeadlineExceeded that
// names all others: MPI does not say which. An abort, and an error on any rank,
// reaches those that wait within about a millisecond. After an error MPI may
// still write to the buffers of operations that were under way: it cannot take
// a collective back. Keep such buffers until the process ends.
//
// Subgroups: MPI_Comm_create_group cannot be waited for until a deadline, so
// the members first meet by messages; a member that dies between the two leaves
// the others waiting. MPICH has about 2000 groups a process.

// Called by every rank of the options' communicator, in the same order with
// other calls on it. InvalidArgument where an option cannot be,
// FailedPrecondition where MPI cannot be used (StartMpi), DeadlineExceeded
// where ranks do not come.
absl::StatusOr<std::unique_ptr<Engine>> CreateMpiEngine(
    const MpiOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_
