// RunMpiCollective: executes a collective with MPI's own functions.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_COLLECTIVE_H_
#define TESSERA_COLLECTIVES_MPI_MPI_COLLECTIVE_H_

#include <mpi.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/mpi_types.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// Like Engine::Run. All kinds, types, reductions and counts.
absl::Status RunMpiCollective(MpiGroup& group, const Operation& operation,
                              OperationContext& context);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_COLLECTIVE_H_
