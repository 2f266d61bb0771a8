// LossScaler: the factor on the loss of a step with 16-bit gradients.
#ifndef TESSERA_ZERO3_STATE_LOSS_SCALER_H_
#define TESSERA_ZERO3_STATE_LOSS_SCALER_H_

#include <cstdint>

#include "absl/status/status.h"

namespace tessera::zero3 {

struct LossScaleOptions {
  bool dynamic = false;  // Otherwise the scale is constant.
  double initial = 1;
  double least = 1;
  double largest = 1 << 24;
  int64_t growth_interval = 1000;
  // The scale halves after this number of overflows without growth in between.
  int64_t hysteresis = 1;
};

// The usual `initial` of a dynamic scale, which decreases within a few steps if
// it is too large.
inline constexpr double kFirstLossScale = 65536;

// InvalidArgument if a number is not positive and finite, or if the numbers are
// inconsistent.
absl::Status CheckLossScale(const LossScaleOptions& options);

// The factor on the loss that keeps gradients of 16-bit types from
// underflowing. It halves when gradients overflow (those steps are skipped) and
// doubles after `growth_interval` steps without overflow. Micikevicius et al.,
// Mixed Precision Training, arXiv 1710.03740, section 3.2.
//
//   LossScaler scaler({.dynamic = true, .initial = kFirstLossScale});
//   loss * scaler.scale();
//   ...
//   scaler.Update(/*overflowed=*/!statistics.IsFinite());
class LossScaler {
 public:
  // Precondition: CheckLossScale(options).ok().
  explicit LossScaler(const LossScaleOptions& options)
      : options_(options),
        scale_(options.initial),
        patience_(options.hysteresis) {}

  double scale() const { return scale_; }
  int64_t steps_since_change() const { return good_steps_; }

  void Update(bool overflowed);

  // Restores the state of a checkpoint; the hysteresis restarts.
  void Restore(double scale, int64_t steps_since_change) {
    scale_ = scale;
    good_steps_ = steps_since_change;
    patience_ = options_.hysteresis;
  }

 private:
  LossScaleOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  int64_t patience_;  // Overflows left until it halves.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_LOSS_SCALER_H_
