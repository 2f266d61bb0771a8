#include "zero3/state/options_from_config.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

LossScaleOptions LossScaleFrom(const ZeroConfig& config) {
  if (config.loss_scale > 0) {
    return {.initial = config.loss_scale,
            .least = config.loss_scale,
            .largest = config.loss_scale};
  }
  const double initial =
      std::ldexp(1.0, static_cast<int>(config.initial_scale_power));
  return {.dynamic = true,
          .initial = initial,
          .least = config.min_loss_scale,
          .largest = std::max(initial, LossScaleOptions().largest),
          .growth_interval = config.loss_scale_window,
          .hysteresis = config.hysteresis};
}

}  // namespace

absl::StatusOr<ShardedStateOptions> OptionsFrom(const ZeroConfig& config,
                                                DType parameter_dtype,
                                                offload::MemoryTier* tier,
                                                offload::MemoryTier* files) {
  TESSERA_RETURN_IF_ERROR(config.Validate());
  const bool parameters = config.stage == 3 && config.offload_parameters;
  const bool gradients = config.stage >= 2 && config.offload_gradients;
  const bool offloads = parameters || gradients || config.offload_optimizer;
  if (tier == nullptr && offloads) {
    return absl::InvalidArgumentError(
        "the configuration offloads state, and there is no tier for it: give "
        "one, or set offload_parameters, offload_gradients and "
        "offload_optimizer to false");
  }
  ShardedStateOptions options;
  options.stage = static_cast<int>(config.stage);
  options.layout = config.layout;
  options.alignment = config.alignment;
  options.persistence_threshold = config.parameter_persistence_threshold;
  options.gradient_dtype = config.gradient_type == GradientType::kParameter &&
                                   SizeInBytes(parameter_dtype) < 4
                               ? parameter_dtype
                               : DType::kF32;
  options.bucket_bytes = config.reduce_bucket_size.bytes();
  options.allow_unused = config.allow_unused_parameters;
  options.max_live_elements = config.max_live_parameters;
  options.max_reuse_distance = config.max_reuse_distance;
  options.value_budget_bytes = config.EffectiveDeviceParameterBudget().bytes();
  options.overlap = config.overlap;
  options.prefetch_windows = config.async_prefetch ? 1 : 0;
  options.prefetch_shards = config.async_prefetch ? config.prefetch_buffer : 0;
  options.clip_norm = config.gradient_clipping;
  options.loss_scale = LossScaleFrom(config);
  options.parameter_tier = parameters ? tier : nullptr;
  options.gradient_tier = gradients ? tier : nullptr;
  options.optimizer_tier = config.offload_optimizer ? tier : nullptr;
  options.tier_budget = config.EffectiveHostBudget().bytes();
  options.far_tier = offloads ? files : nullptr;
  return options;
}

}  // namespace tessera::zero3
