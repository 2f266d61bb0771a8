#include "zero3/estimate/state_blocks.h"

#include <algorithm>
#include <utility>

namespace tessera::zero3 {
namespace {

// Makes the blocks one kind after the other, and gives out the host's budget.
class BlockList {
 public:
  BlockList(const StateLayout& layout, const ZeroConfig& config,
            topology::Rank rank)
      : layout_(layout), config_(config), slots_(layout.ExtentsOf(rank)) {}

  void AddValues() {
    const bool is_sharded = config_.stage == 3;
    for (const Parameter& parameter : layout_.model().all()) {
      if (is_sharded && !layout_.IsSmall(parameter.id)) continue;
      Add(ValuePurpose(parameter), parameter, /*offload=*/false,
          layout_.GatheredElements(parameter.id) *
              SizeInBytes(parameter.dtype()));
    }
    if (!is_sharded) return;
    for (const Extent& extent : slots_) {
      const Parameter& parameter = ParameterOf(extent);
      if (layout_.IsSmall(parameter.id)) continue;
      Add(ValuePurpose(parameter), parameter, config_.offload_parameters,
          extent.slot * SizeInBytes(parameter.dtype()));
    }
  }

  void AddGradients() {
    if (config_.stage < 2) {
      for (const Parameter& parameter : layout_.model().all()) {
        AddGradient(parameter, /*offload=*/false,
                    layout_.GatheredElements(parameter.id));
      }
      return;
    }
    for (const Extent& extent : slots_) {
      AddGradient(ParameterOf(extent), config_.offload_gradients, extent.slot);
    }
  }

  void AddOptimizer(const OptimizerState& optimizer) {
    for (const Extent& extent : slots_) {
      if (!HasMasterWeights(ParameterOf(extent))) continue;
      Add(Purpose::kMasterWeights, ParameterOf(extent),
          config_.offload_optimizer, extent.slot * 4);
    }
    for (const Extent& extent : slots_) {
      if (!ParameterOf(extent).trainable()) continue;
      const bool is_f64 = ParameterOf(extent).dtype() == DType::kF64;
      Add(Purpose::kMoments, ParameterOf(extent), config_.offload_optimizer,
          is_f64 ? optimizer.moments * extent.slot * 8
                 : MomentBytes(optimizer, extent.slot));
    }
  }

  std::vector<StateBlock> Take() && { return std::move(blocks_); }

 private:
  const Parameter& ParameterOf(const Extent& extent) const {
    return layout_.model()[extent.parameter];
  }
  static Purpose ValuePurpose(const Parameter& parameter) {
    return HasMasterWeights(parameter) ? Purpose::kCopies
                                       : Purpose::kParameters;
  }

  void AddGradient(const Parameter& parameter, bool offload, int64_t elements) {
    if (!parameter.trainable()) return;
    Add(Purpose::kGradients, parameter, offload,
        elements * GradientBytes(parameter, config_));
  }

  void Add(Purpose purpose, const Parameter& parameter, bool offload,
           int64_t bytes) {
    if (bytes == 0) return;
    blocks_.push_back({.purpose = purpose,
                       .parameter = parameter.id,
                       .tier = offload ? TierFor(bytes) : Tier::kDevice,
                       .bytes = bytes});
  }

  Tier TierFor(int64_t bytes) {
    const int64_t budget = config_.EffectiveHostBudget().bytes();
    const bool fits = bytes <= budget - host_used_;
    if (!fits && !config_.swap_directory.empty()) return Tier::kFile;
    host_used_ += bytes;
    return Tier::kHost;
  }

  const StateLayout& layout_;
  const ZeroConfig& config_;
  const std::vector<Extent> slots_;
  int64_t host_used_ = 0;
  std::vector<StateBlock> blocks_;
};

}  // namespace

int64_t GradientBytes(const Parameter& parameter, const ZeroConfig& config) {
  const int64_t own = SizeInBytes(parameter.dtype());
  return config.gradient_type == GradientType::kFp32 ? std::max<int64_t>(own, 4)
                                                     : own;
}

bool HasMasterWeights(const Parameter& parameter) {
  return parameter.trainable() && SizeInBytes(parameter.dtype()) < 4;
}

std::vector<StateBlock> StateBlocksOf(const StateLayout& layout,
                                      const ZeroConfig& config,
                                      const OptimizerState& optimizer,
                                      topology::Rank rank) {
  BlockList list(layout, config, rank);
  list.AddValues();
  list.AddGradients();
  list.AddOptimizer(optimizer);
  return std::move(list).Take();
}

}  // namespace tessera::zero3
