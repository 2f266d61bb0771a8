#include "zero3/config/zero_config.h"

#include "zero3/config/internal/checks.h"

namespace tessera::zero3 {

using internal::Checker;

std::vector<topology::ConfigProblem> ZeroConfig::Problems() const {
  constexpr int64_t kMany = int64_t{1} << 40;
  Checker check;
  check.Range("stage", stage, 0, 3);
  check.Choice("layout", layout);
  check.Range("alignment", alignment, 1, kMaxAlignment);
  const bool offloads =
      offload_parameters || offload_gradients || offload_optimizer;
  const bool needs_host = offloads && swap_directory.empty();
  check.Bytes("cpu_budget", cpu_budget, needs_host ? 1 : 0);
  check.Bytes("device_parameter_budget", device_parameter_budget, 1);
  check.Path("swap_directory", swap_directory);
  check.Choice("compression", compression);
  check.Choice("strategy", strategy);
  check.Range("prefetch_buffer", prefetch_buffer, 1, 2048);
  // One element of the largest type.
  check.Bytes("reduce_bucket_size", reduce_bucket_size, 8);
  check.Range("parameter_persistence_threshold",
              parameter_persistence_threshold, 0, kMaxLayoutElements);
  check.Range("max_live_parameters", max_live_parameters, 0,
              kMaxLayoutElements);
  check.Range("max_reuse_distance", max_reuse_distance, 0, kMaxLayoutElements);
  check.Range("gradient_accumulation_steps", gradient_accumulation_steps, 1,
              kMany);
  check.Choice("gradient_type", gradient_type);
  check.Number("gradient_clipping", gradient_clipping, 0);
  check.Number("loss_scale", loss_scale, 0);
  // 2^126 is the largest power of which float32 holds the reciprocal exactly.
  check.Range("initial_scale_power", initial_scale_power, 0, 126);
  check.Range("loss_scale_window", loss_scale_window, 1, kMany);
  check.Range("hysteresis", hysteresis, 1, kMany);
  check.LeastScale("min_loss_scale", min_loss_scale, initial_scale_power);
  return check.problems();
}

absl::Status ZeroConfig::Validate() const {
  return topology::ProblemsToStatus(Problems(), "the ZeRO configuration");
}

ByteSize ZeroConfig::EffectiveHostBudget() const {
  return EffectiveBudget(cpu_budget, strategy);
}

ByteSize ZeroConfig::EffectiveDeviceParameterBudget() const {
  return EffectiveBudget(device_parameter_budget, strategy);
}

LayoutOptions ZeroConfig::MakeLayoutOptions(int64_t ranks) const {
  return {.kind = layout,
          .ranks = stage == 0 ? 1 : ranks,
          .alignment = alignment,
          .small_below = stage == 3 ? parameter_persistence_threshold : 0};
}

}  // namespace tessera::zero3
