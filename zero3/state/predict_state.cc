#include "zero3/state/predict_state.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "base/tensor/counting_memory.h"
#include "collectives/communicator.h"
#include "collectives/counting/counting_engine.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3 {
namespace {

class NoMatrixUpdates final : public MatrixUpdates {
 public:
  absl::Status Run(MatrixShards&) override { return absl::OkStatus(); }
};

absl::Status RunStep(const ModelParameters& model, ShardedState& state) {
  for (int64_t i = 0; i < model.group_count(); ++i) {
    TESSERA_RETURN_IF_ERROR(state.Acquire(model.group(i)));
    TESSERA_RETURN_IF_ERROR(state.Release(model.group(i)));
  }
  for (int64_t i = model.group_count() - 1; i >= 0; --i) {
    TESSERA_RETURN_IF_ERROR(state.Acquire(model.group(i)));
    std::vector<ParameterId> trained;
    for (const ParameterId id : model.group(i)) {
      if (!model[id].trainable()) continue;
      TESSERA_RETURN_IF_ERROR(state.Gradient(id).status());
      trained.push_back(id);
    }
    if (!trained.empty()) {
      TESSERA_RETURN_IF_ERROR(state.ReduceGradients(trained));
    }
    TESSERA_RETURN_IF_ERROR(state.Release(model.group(i)));
  }
  NoMatrixUpdates none;
  return state.Step(state.options().UpdatesMatrices() ? &none : nullptr)
      .status();
}

}  // namespace

absl::StatusOr<offload::Usage> PredictState(const ModelParameters& model,
                                            const ShardedStateOptions& options,
                                            int64_t ranks,
                                            topology::Rank rank) {
  if (model.count() == 0) {
    return absl::InvalidArgumentError(
        "the model has no parameters; add those of at least one layer");
  }
  if (options.parameter_tier != nullptr || options.gradient_tier != nullptr ||
      options.optimizer_tier != nullptr) {
    return absl::InvalidArgumentError(
        "the options have tiers, and only a rank's own memory is predicted; "
        "leave the tiers out");
  }
  const auto memory = std::make_shared<CountingMemory>();
  CountingDevice device(memory, memory);
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device.CreateQueue("compute"));
  TESSERA_ASSIGN_OR_RETURN(
      auto engine, collectives::CreateCountingEngine(
                       {.rank = rank, .ranks = ranks, .memory = memory}));
  TESSERA_ASSIGN_OR_RETURN(
      const auto group, collectives::Communicator::Create(std::move(engine)));
  ShardedStateOptions dry = options;
  dry.queue = queue.get();
  dry.ops = DryStateOps();
  dry.device = nullptr;
  TESSERA_ASSIGN_OR_RETURN(
      const auto state,
      ShardedState::Create(model, dry, {.shard = group.get()}));
  TESSERA_RETURN_IF_ERROR(RunStep(model, *state));
  return state->usage();
}

}  // namespace tessera::zero3
