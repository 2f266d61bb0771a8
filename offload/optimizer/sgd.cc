#include "offload/optimizer/sgd.h"

#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {
namespace {

StepRule RuleOf(const SgdOptions& options) {
  if (options.momentum == 0) return StepRule::kPlain;
  return options.nesterov ? StepRule::kNesterov : StepRule::kMomentum;
}

StepNumbers NumbersOf(const SgdOptions& options, int64_t step,
                      const StepScale& scale) {
  const bool is_coupled = options.decay == WeightDecay::kCoupled;
  return {
      .gradient_scale = scale.unscale * scale.clip_factor,
      .decay_in_gradient = is_coupled ? options.weight_decay : 0,
      .kept = is_coupled ? 1 : 1 - options.learning_rate * options.weight_decay,
      .beta1 = options.momentum,
      .fresh1 = step == 1 ? 1 : 1 - options.dampening,
      .rate = options.learning_rate,
  };
}

}  // namespace

absl::Status CheckOptimizer(const SgdOptions& options) {
  TESSERA_RETURN_IF_ERROR(
      CheckNumbers("Sgd", {{"learning_rate", options.learning_rate},
                           {"momentum", options.momentum, 1},
                           {"dampening", options.dampening, 1},
                           {"weight_decay", options.weight_decay}}));
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    return absl::InvalidArgumentError(
        "Sgd: nesterov takes a momentum above 0 and a dampening of 0");
  }
  return CheckThreads("Sgd", options.threads);
}

RangesStep StepOf(const SgdOptions& options, int64_t step,
                  const StepScale& scale) {
  const StepRule rule = RuleOf(options);
  return {
      .name = "Sgd",
      .rule = rule,
      .moments = rule == StepRule::kPlain ? 0 : 1,
      .numbers = NumbersOf(options, step, scale),
      .rounds_at_random = options.rounding == MomentRounding::kStochastic,
      .random_key = RandomKey(options.seed, step),
  };
}

}  // namespace tessera::offload
