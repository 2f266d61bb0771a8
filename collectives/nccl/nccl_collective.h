// RunNcclCollective: one collective by NCCL's calls.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_COLLECTIVE_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_COLLECTIVE_H_

#include "absl/status/status.h"
#include "collectives/engine/operation_context.h"
#include "collectives/nccl/nccl_group.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// As Engine::Run. All kinds, types and reductions.
absl::Status RunNcclCollective(NcclGroup& group, const Operation& operation,
                               OperationContext& context);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_COLLECTIVE_H_
