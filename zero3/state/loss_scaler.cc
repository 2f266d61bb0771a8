#include "zero3/state/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera::zero3 {

absl::Status CheckLossScale(const LossScaleOptions& options) {
  const auto is_positive = [](double x) { return std::isfinite(x) && x > 0; };
  if (!is_positive(options.initial) || !is_positive(options.least) ||
      !is_positive(options.largest) || options.least > options.initial ||
      options.initial > options.largest) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale: least ", options.least, ", initial ",
                     options.initial, ", largest ", options.largest,
                     "; they must be positive, finite and in this order"));
  }
  if (options.hysteresis < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale: a hysteresis of ", options.hysteresis,
                     " overflows; it must be at least 1"));
  }
  if (options.growth_interval < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale: a growth interval of ",
                     options.growth_interval, " steps; it must be at least 1"));
  }
  return absl::OkStatus();
}

void LossScaler::Update(bool overflowed) {
  if (!options_.dynamic) return;
  if (overflowed) {
    good_steps_ = 0;
    if (--patience_ > 0) return;
    patience_ = 1;
    scale_ = std::max(scale_ / 2, options_.least);
  } else if (++good_steps_ == options_.growth_interval) {
    good_steps_ = 0;
    patience_ = options_.hysteresis;
    scale_ = std::min(scale_ * 2, options_.largest);
  }
}

}  // namespace tessera::zero3
