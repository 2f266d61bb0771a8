#include "zero3/estimate/toy_runtime.h"

namespace tessera::zero3 {

using topology::Rank;

ToyRuntime::ToyRuntime(const StateLayout& layout, const ZeroConfig& config,
                       const MemoryRequest& request, Rank rank)
    : layout_(layout), config_(config) {
  for (int64_t r = 0; r < layout.ranks(); ++r) {
    for (int64_t i = 0; i < layout.all(Rank(r)).size(); ++i) {
      const ParameterId id = layout.GlobalOf(Rank(r), i)->parameter;
      ++gathered_[id];
      if (Rank(r) == rank && ++slot_[id] == 1) order_.push_back(id);
    }
  }
  const ByteSize budget = config.cpu_budget;
  const int64_t percents[] = {90, 75, 60, 40};
  // Small budgets only: the product fits.
  host_left_ =
      budget.bytes() * percents[static_cast<int>(config.strategy)] / 100;
  PlaceValues();
  PlaceGradients();
  PlaceOptimizer(request.optimizer);
}

void ToyRuntime::Place(Purpose purpose, bool offload, int64_t bytes) {
  Tier tier = Tier::kDevice;
  if (offload) {
    tier = Tier::kHost;
    if (bytes > host_left_ && config_.swap_directory != "") tier = Tier::kFile;
    if (tier == Tier::kHost) host_left_ -= bytes;
  }
  state_.Add(purpose, tier, bytes);
}

void ToyRuntime::PlaceValues() {
  const auto purpose = [](const Parameter& parameter) {
    const bool is_wide =
        parameter.dtype() == DType::kF32 || parameter.dtype() == DType::kF64;
    return parameter.trainable() && !is_wide ? Purpose::kCopies
                                             : Purpose::kParameters;
  };
  for (const Parameter& parameter : layout_.model().all()) {
    if (config_.stage < 3 || IsSmall(parameter)) {
      Place(purpose(parameter), false,
            gathered_[parameter.id] * SizeInBytes(parameter.dtype()));
    }
  }
  for (const ParameterId id : order_) {
    const Parameter& parameter = layout_.model()[id];
    if (config_.stage < 3 || IsSmall(parameter)) continue;
    const int64_t bytes = slot_[id] * SizeInBytes(parameter.dtype());
    Place(purpose(parameter), config_.offload_parameters, bytes);
  }
}

void ToyRuntime::PlaceGradients() {
  for (const Parameter& parameter : layout_.model().all()) {
    if (config_.stage >= 2 || !parameter.trainable()) continue;
    Place(Purpose::kGradients, false,
          gathered_[parameter.id] * GradientSize(parameter));
  }
  for (const ParameterId id : order_) {
    const Parameter& parameter = layout_.model()[id];
    if (config_.stage < 2 || !parameter.trainable()) continue;
    const int64_t bytes = slot_[id] * GradientSize(parameter);
    Place(Purpose::kGradients, config_.offload_gradients, bytes);
  }
}

void ToyRuntime::PlaceOptimizer(const OptimizerState& optimizer) {
  const bool offload = config_.offload_optimizer;
  for (const Purpose purpose : {Purpose::kMasterWeights, Purpose::kMoments}) {
    for (const ParameterId id : order_) {
      const Parameter& parameter = layout_.model()[id];
      if (!parameter.trainable()) continue;
      int64_t bytes = 4 * slot_[id];
      if (purpose == Purpose::kMoments) {
        bytes = parameter.dtype() == DType::kF64
                    ? optimizer.moments * slot_[id] * 8
                    : MomentBytes(optimizer, slot_[id]);
      } else if (SizeInBytes(parameter.dtype()) >= 4) {
        continue;
      }
      Place(purpose, offload, bytes);
    }
  }
}

}  // namespace tessera::zero3
