#include "tools/train/settings/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"

namespace tessera::train {
namespace {

// The remaining share of peak - least after a share `done` of the decay, in
// [0, 1].
double ShareLeft(RateSchedule schedule, double done) {
  switch (schedule) {
    case RateSchedule::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * done));
    case RateSchedule::kLinear:
      return 1 - done;
    case RateSchedule::kWsd:
      return 1 - std::sqrt(done);
    case RateSchedule::kConstant:
      break;
  }
  return 1;
}

}  // namespace

absl::StatusOr<RateSchedule> ParseRateSchedule(std::string_view name) {
  if (name == "cosine") return RateSchedule::kCosine;
  if (name == "linear") return RateSchedule::kLinear;
  if (name == "wsd") return RateSchedule::kWsd;
  if (name == "constant") return RateSchedule::kConstant;
  return absl::InvalidArgumentError(
      absl::StrCat("no learning-rate schedule is named ", Quoted(name),
                   "; there are cosine, linear, wsd and constant"));
}

double LearningRate::At(int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) /
           static_cast<double>(warmup_steps);
  }
  const int64_t begin = schedule == RateSchedule::kWsd
                            ? std::max(total_steps - decay_steps, warmup_steps)
                            : warmup_steps;
  const int64_t span = std::max<int64_t>(total_steps - begin, 1);
  const int64_t done = std::clamp<int64_t>(step - begin, 0, span);
  return least +
         (peak - least) * ShareLeft(schedule, static_cast<double>(done) /
                                                  static_cast<double>(span));
}

}  // namespace tessera::train
