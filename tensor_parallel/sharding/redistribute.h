// RunStep: one step of a redistribution, carried out.
//
//   TESSERA_ASSIGN_OR_RETURN(auto next, RunStep(groups, tensor, step));
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTE_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTE_H_

#include "absl/status/statusor.h"
#include "base/tensor/tensor.h"
#include "collectives/groups/group_manager.h"
#include "tensor_parallel/sharding/distributed_tensor.h"
#include "tensor_parallel/sharding/redistribution_plan.h"
#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {

// `tensor` must have the spec step.from. A collective over this rank's group
// along step.axes. Blocks that are contiguous in the shards are sent and
// received in place, others through packed memory.
absl::StatusOr<DistributedTensor> RunStep(collectives::GroupManager& groups,
                                          const DistributedTensor& tensor,
                                          const RedistributionStep& step);

// Redistribute: a distributed tensor under another spec; Gather: without its
// shards.
//
//   const ShardSpec to = {.dims = {{}, {{"tp"}}}};
//   TESSERA_ASSIGN_OR_RETURN(auto columns, Redistribute(groups, rows, to));
//   TESSERA_ASSIGN_OR_RETURN(auto rows_of_all, Gather(groups, columns, 1));
//   TESSERA_ASSIGN_OR_RETURN(Tensor full, GatherAll(groups, columns));
//
// All are collectives: the ranks of the mesh call them with tensors of one spec
// and shape, and the same target. Elements are moved as bits, in host memory.
// Partial sums are added by the communicators, in their order and rounding.
// Threads: as of the group manager's communicators.

// Uses the cheapest plan. InvalidArgument, with nothing sent, as
// PlanRedistribution, and if the tensor is not of the group manager's rank;
// else the communicator's errors.
absl::StatusOr<DistributedTensor> Redistribute(
    collectives::GroupManager& groups, const DistributedTensor& tensor,
    const ShardSpec& to, const PlanOptions& options = {});

// By a plan made before, which is of the tensor's shape, type and spec:
// InvalidArgument otherwise.
absl::StatusOr<DistributedTensor> Redistribute(
    collectives::GroupManager& groups, const DistributedTensor& tensor,
    const RedistributionPlan& plan);

// With no axis left on dimension `dim`. InvalidArgument if there is no such
// dimension.
absl::StatusOr<DistributedTensor> Gather(collectives::GroupManager& groups,
                                         const DistributedTensor& tensor,
                                         int dim);

// The whole tensor, partial sums added, on every rank.
absl::StatusOr<Tensor> GatherAll(collectives::GroupManager& groups,
                                 const DistributedTensor& tensor);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_REDISTRIBUTE_H_
