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
#ifndef TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_
#define TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/engine/engine.h"
#include "collectives/mpi/mpi_options.h"

namespace tessera::collectives {

// Called by every rank of the options' communicator, in the same order with
// other calls on it. InvalidArgument where an option cannot be,
// FailedPrecondition where MPI cannot be used (StartMpi), DeadlineExceeded
// where ranks do not come.
absl::StatusOr<std::unique_ptr<Engine>> CreateMpiEngine(
    const MpiOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_ENGINE_H_
