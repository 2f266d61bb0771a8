// RunStep: one step of a redistribution, carried out.
//
//   TESSERA_ASSIGN_OR_RETURN(auto next, RunStep(groups, tensor, step));
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_RUN_STEP_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_RUN_STEP_H_

#include "absl/status/statusor.h"
#include "collectives/groups/group_manager.h"
#include "tensor_parallel/sharding/distributed_tensor.h"
#include "tensor_parallel/sharding/redistribution_step.h"

namespace tessera::tensor_parallel {

// `tensor` is as step.from says. A collective over this rank's group along
// step.axes. Blocks that lie in one row in the shards are sent and received
// where they are, others by way of packed memory.
absl::StatusOr<DistributedTensor> RunStep(collectives::GroupManager& groups,
                                          const DistributedTensor& tensor,
                                          const RedistributionStep& step);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_RUN_STEP_H_
