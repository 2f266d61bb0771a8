#include "tensor_parallel/sharding/redistribute.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/run_step.h"

namespace tessera::tensor_parallel {

using collectives::GroupManager;

absl::StatusOr<DistributedTensor> Redistribute(GroupManager& groups,
                                               const DistributedTensor& tensor,
                                               const ShardSpec& to,
                                               const PlanOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      const RedistributionPlan plan,
      PlanRedistribution(groups.mesh(), tensor.shape(), tensor.dtype(),
                         tensor.spec(), to, options));
  return Redistribute(groups, tensor, plan);
}

absl::StatusOr<DistributedTensor> Redistribute(GroupManager& groups,
                                               const DistributedTensor& tensor,
                                               const RedistributionPlan& plan) {
  if (plan.shape != tensor.shape() || plan.dtype != tensor.dtype() ||
      !(plan.from == tensor.spec())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the plan is for ", DTypeName(plan.dtype), " ",
        DimsToString(plan.shape), " as ", plan.from.ToString(),
        ", the tensor is ", tensor.ToString(), "; plan for this tensor"));
  }
  if (groups.mesh_rank() != tensor.rank() ||
      groups.mesh().world_size() != tensor.mesh().world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor is rank ", tensor.rank().value(), "'s of ",
        tensor.mesh().world_size(), ", the group manager rank ",
        groups.mesh_rank().value(), "'s of ", groups.mesh().world_size(),
        "; both must be of one mesh and rank"));
  }
  const DistributedTensor* current = &tensor;
  absl::StatusOr<DistributedTensor> result = absl::UnknownError("no step");
  for (const RedistributionStep& step : plan.steps) {
    result = RunStep(groups, *current, step);
    if (!result.ok()) return Annotate(result.status(), step.ToString());
    current = &*result;
  }
  // A tensor of its own also where there was nothing to do.
  return plan.steps.empty()
             ? RunStep(
                   groups, tensor,
                   {.kind = StepKind::kSlice, .from = plan.from, .to = plan.to})
             : std::move(result);
}

absl::StatusOr<DistributedTensor> Gather(GroupManager& groups,
                                         const DistributedTensor& tensor,
                                         int dim) {
  if (dim < 0 || static_cast<size_t>(dim) >= tensor.shape().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather along dimension ", dim, " of ", tensor.ToString(),
                     "; 0 to ", tensor.shape().size(), " less 1 are allowed"));
  }
  ShardSpec to = tensor.spec();
  to.dims[static_cast<size_t>(dim)].axes.clear();
  return Redistribute(groups, tensor, to);
}

absl::StatusOr<Tensor> GatherAll(GroupManager& groups,
                                 const DistributedTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(
      DistributedTensor whole,
      Redistribute(groups, tensor,
                   ShardSpec::Replicated(tensor.shape().size())));
  return std::move(whole.local());
}

}  // namespace tessera::tensor_parallel
