#include "offload/optimizer/sgd.h"

#include <cstdint>
#include <memory>
#include <span>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {
namespace {

absl::Status CheckOptions(const SgdOptions& options) {
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

absl::StatusOr<std::unique_ptr<Sgd>> Sgd::Create(const SgdOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  return absl::WrapUnique(new Sgd(options));
}

absl::Status Sgd::SetLearningRate(double learning_rate) {
  SgdOptions changed = options_;
  changed.learning_rate = learning_rate;
  TESSERA_RETURN_IF_ERROR(CheckOptions(changed));
  options_ = changed;
  return absl::OkStatus();
}

absl::StatusOr<RangesStep> Sgd::Prepare(int64_t step,
                                        const StepScale& scale) const {
  TESSERA_RETURN_IF_ERROR(CheckStep("Sgd", step, scale));
  const StepRule rule = RuleOf(options_);
  return RangesStep{
      .rule = rule,
      .moments = rule == StepRule::kPlain ? 0 : 1,
      .numbers = NumbersOf(options_, step, scale),
      .rounds_at_random = options_.rounding == MomentRounding::kStochastic,
      .random_key = RandomKey(options_.seed, step),
  };
}

absl::Status Sgd::Run(const RangesStep& prepared,
                      std::span<const ParameterRange> ranges) {
  return Annotate(RunRanges(prepared, ranges, *pool_), "Sgd");
}

absl::Status Sgd::Undo(std::span<const ParameterRange> ranges) {
  return Annotate(
      UndoRanges(RuleOf(options_) == StepRule::kPlain ? 0 : 1, ranges, *pool_),
      "Sgd");
}

absl::Status Sgd::Step(int64_t step, const StepScale& scale,
                       std::span<const ParameterRange> ranges) {
  TESSERA_ASSIGN_OR_RETURN(const RangesStep prepared, Prepare(step, scale));
  return Run(prepared, ranges);
}

}  // namespace tessera::offload
