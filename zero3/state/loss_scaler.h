// LossScaler: the factor on the loss that keeps gradients of 16-bit types from
// vanishing.
//
//   LossScaler scaler({.initial = 65536});
//   loss * scaler.scale();
//   ...
//   scaler.Update(/*overflowed=*/!statistics.IsFinite());
//
// It halves when gradients overflow (those steps are left out) and doubles
// after `growth_interval` steps without one. Micikevicius et al., Mixed
// Precision Training, arXiv 1710.03740, section 3.2.
#ifndef TESSERA_ZERO3_STATE_LOSS_SCALER_H_
#define TESSERA_ZERO3_STATE_LOSS_SCALER_H_

#include <cstdint>

#include "absl/status/status.h"

namespace tessera::zero3 {

struct LossScaleOptions {
  bool dynamic = false;  // Otherwise the scale stays as it is.
  double initial = 1;
  double least = 1;
  double largest = 1 << 24;
  int64_t growth_interval = 1000;
  // How many overflows, with no growth between them, until it halves.
  int64_t hysteresis = 1;
};

// InvalidArgument where a number is not positive and finite, or not in order.
absl::Status CheckLossScale(const LossScaleOptions& options);

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

  // As it was when a checkpoint was written; the hysteresis begins anew.
  void Restore(double scale, int64_t steps_since_change) {
    scale_ = scale;
    good_steps_ = steps_since_change;
    patience_ = options_.hysteresis;
  }

 private:
  LossScaleOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  int64_t patience_;  // Overflows that are left until it halves.
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_LOSS_SCALER_H_
