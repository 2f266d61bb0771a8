// ShardedModel: the weights of a rank's stages, with their state partitioned
// over data-parallel ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(auto model, ShardedModel::Create(
//       windows, options, {.shard = data_group, .model = model_group},
//       first_values));
//   stage reads weights through model->access()
//   TESSERA_RETURN_IF_ERROR(model->BeginStep());
//   ... forward and backward passes ...
//   TESSERA_RETURN_IF_ERROR(model->ReduceGradients());
//   TESSERA_ASSIGN_OR_RETURN(zero3::StepReport report, model->Step());
//
// The layers' parameters are bound to the state's memory. One thread at a time.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_SHARDED_MODEL_H_
#define TESSERA_TOOLS_TRAIN_MODEL_SHARDED_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/train/model/weight_access.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {

using ParameterWindow = std::vector<tensor_parallel::Parameter*>;

class ShardedModel final : public WeightAccess {
 public:
  // Sets the elements [begin, begin + n) that a parameter holds.
  using FirstValues =
      std::function<absl::Status(const tensor_parallel::Parameter& parameter,
                                 int64_t begin, TensorView elements)>;

  // A collective. The parameters need no memory of their own, and have none
  // afterwards. A parameter of several windows belongs to the first. Gradients
  // of `uncounted` are not counted in the norm (a copy that another rank
  // counts), nor elements that this rank is not the primary holder of.
  static absl::StatusOr<std::unique_ptr<ShardedModel>> Create(
      std::vector<ParameterWindow> windows, zero3::ShardedStateOptions options,
      const zero3::ShardedStateGroups& groups, const FirstValues& first,
      std::span<const tensor_parallel::Parameter* const> uncounted = {});

  zero3::ShardedState& state() { return *state_; }
  // In the order of the state's ids; what a rank holds of which whole tensor.
  std::span<tensor_parallel::Parameter* const> parameters() const {
    return parameters_;
  }

  // Gradients are zeros and have their memory.
  absl::Status BeginStep();
  // Behind the last backward: sums over the data-parallel ranks.
  absl::Status ReduceGradients();
  absl::StatusOr<zero3::StepReport> Step() { return state_->Step(); }

  // WeightAccess.
  absl::Status Use(
      std::span<tensor_parallel::Parameter* const> parameters) override;
  absl::Status Done(
      std::span<tensor_parallel::Parameter* const> parameters) override;

 private:
  ShardedModel(std::vector<ParameterWindow> windows, int stage)
      : windows_(std::move(windows)), stage_(stage) {}

  absl::StatusOr<zero3::ModelParameters> Describe();
  absl::Status SetValues(const FirstValues& first);
  absl::Status BindWhole();
  zero3::ParameterId IdOf(const tensor_parallel::Parameter* parameter) const {
    return ids_.at(parameter);
  }

  const std::vector<ParameterWindow> windows_;
  const int stage_;
  std::vector<tensor_parallel::Parameter*> parameters_;  // By id.
  absl::flat_hash_map<const tensor_parallel::Parameter*, zero3::ParameterId>
      ids_;
  std::unique_ptr<zero3::ShardedState> state_;
  std::vector<zero3::ParameterId> acquired_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_SHARDED_MODEL_H_
