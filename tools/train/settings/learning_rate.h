// The learning rate of every step of a run.
//
//   const LearningRate rate = {.schedule = RateSchedule::kWsd,
//                              .peak = 3e-3,
//                              .least = 3e-4,
//                              .warmup_steps = 100,
//                              .decay_steps = 1000,
//                              .total_steps = 10'000};
//   rate.At(0);      // 3e-5
//   rate.At(5'000);  // 3e-3
//
// All schedules begin with a linear warm-up and depend only on the step, so
// that a resumed run has the same rates as an uninterrupted one.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_LEARNING_RATE_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_LEARNING_RATE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::train {

enum class RateSchedule {
  // Half a cosine from the peak to the least rate (Loshchilov and Hutter, SGDR,
  // arXiv 1608.03983, without restarts).
  kCosine,
  kLinear,  // A line from the peak to the least rate.
  // Warm-up, stable, decay (Hu et al., MiniCPM, arXiv 2404.06395): the peak
  // until the last decay_steps. There the rate falls to the least rate by one
  // minus the square root of the share of these steps (Hägele et al., arXiv
  // 2405.18392, find this better than a line). A checkpoint of the stable steps
  // can continue with any total_steps.
  kWsd,
  kConstant,  // The peak.
};

// The values of --lr_schedule: cosine, linear, wsd, constant. InvalidArgument
// for another name.
absl::StatusOr<RateSchedule> ParseRateSchedule(std::string_view name);

struct LearningRate {
  RateSchedule schedule = RateSchedule::kCosine;
  double peak = 3e-4;
  double least = 3e-5;       // From total_steps on, except with kConstant.
  int64_t warmup_steps = 0;  // The first step has 1 / warmup_steps of the peak.
  // For kWsd. Limited to the steps after the warm-up.
  int64_t decay_steps = 0;
  int64_t total_steps = 1;

  // `step` counts from 0. The last step of a run is total_steps - 1, so the
  // least rate is not quite reached.
  double At(int64_t step) const;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_LEARNING_RATE_H_
