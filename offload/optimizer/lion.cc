#include "offload/optimizer/lion.h"

#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {

absl::Status CheckOptimizer(const LionOptions& options) {
  TESSERA_RETURN_IF_ERROR(
      CheckNumbers("Lion", {{"learning_rate", options.learning_rate},
                            {"beta1", options.beta1, 1},
                            {"beta2", options.beta2, 1},
                            {"weight_decay", options.weight_decay}}));
  return CheckThreads("Lion", options.threads);
}

RangesStep StepOf(const LionOptions& options, int64_t step,
                  const StepScale& scale) {
  return {
      .name = "Lion",
      .rule = StepRule::kLion,
      .moments = 1,
      .numbers = {.gradient_scale = scale.unscale * scale.clip_factor,
                  .kept = 1 - options.learning_rate * options.weight_decay,
                  .beta1 = options.beta1,
                  .fresh1 = 1 - options.beta1,
                  .beta2 = options.beta2,
                  .fresh2 = 1 - options.beta2,
                  .rate = options.learning_rate},
      .rounds_at_random = options.rounding == MomentRounding::kStochastic,
      .random_key = RandomKey(options.seed, step),
  };
}

}  // namespace tessera::offload
