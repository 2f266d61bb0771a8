// MpiCollective: one collective by MPI's calls.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_COLLECTIVE_H_
#define TESSERA_COLLECTIVES_MPI_MPI_COLLECTIVE_H_

#include "absl/status/status.h"
#include "collectives/engine/operation_context.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// As Engine::Run. All kinds, types and reductions, any count.
absl::Status RunMpiCollective(MpiGroup& group, const Operation& operation,
                              OperationContext& context);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_COLLECTIVE_H_
