#include "offload/optimizer/adamw.h"

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {
namespace {

StepNumbers NumbersOf(const AdamWOptions& options, int64_t step,
                      const StepScale& scale) {
  // 1 - beta^t; expm1 avoids the cancellation of 1 - pow() if beta is near 1.
  const auto correction = [&](double beta) {
    if (!options.bias_correction || beta == 0) return 1.0;
    return -std::expm1(static_cast<double>(step) * std::log(beta));
  };
  const bool is_coupled = options.decay == WeightDecay::kCoupled;
  return {
      .gradient_scale = scale.unscale * scale.clip_factor,
      .decay_in_gradient = is_coupled ? options.weight_decay : 0,
      .kept = is_coupled ? 1 : 1 - options.learning_rate * options.weight_decay,
      .beta1 = options.beta1,
      .fresh1 = 1 - options.beta1,
      .beta2 = options.beta2,
      .fresh2 = 1 - options.beta2,
      .root_correction = 1 / std::sqrt(correction(options.beta2)),
      .epsilon = options.epsilon,
      .rate = options.learning_rate / correction(options.beta1),
  };
}

}  // namespace

absl::Status CheckOptimizer(const AdamWOptions& options) {
  TESSERA_RETURN_IF_ERROR(
      CheckNumbers("AdamW", {{"learning_rate", options.learning_rate},
                             {"beta1", options.beta1, 1},
                             {"beta2", options.beta2, 1},
                             {"epsilon", options.epsilon},
                             {"weight_decay", options.weight_decay}}));
  return CheckThreads("AdamW", options.threads);
}

RangesStep StepOf(const AdamWOptions& options, int64_t step,
                  const StepScale& scale) {
  return {
      .name = "AdamW",
      .rule = StepRule::kAdamW,
      .moments = 2,
      .numbers = NumbersOf(options, step, scale),
      .rounds_at_random = options.rounding == MomentRounding::kStochastic,
      .random_key = RandomKey(options.seed, step),
  };
}

}  // namespace tessera::offload
