// MpiCall: what one collective's MPI calls have in common.
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

// MpiCollective: one collective by MPI's calls.

// As Engine::Run. All kinds, types and reductions, any count.
absl::Status RunMpiCollective(MpiGroup& group, const Operation& operation,
                              OperationContext& context);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_COLLECTIVE_H_
