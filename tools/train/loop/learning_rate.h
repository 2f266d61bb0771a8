// LearningRate: the learning rate of every step of a run.
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
// All schedules begin with a linear warm-up, and follow from the step alone: a
// run that resumes has the rates of a run that was not interrupted.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_LEARNING_RATE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_LEARNING_RATE_H_

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
  // until the last decay_steps, which go to the least rate by one minus the
  // square root of their share (Hägele et al., arXiv 2405.18392, find it better
  // than a line). A checkpoint of the stable steps continues with any
  // total_steps.
  kWsd,
  kConstant,  // The peak.
};

// The values of --lr_schedule: cosine, linear, wsd, constant. InvalidArgument
// for another name.
absl::StatusOr<RateSchedule> ParseRateSchedule(std::string_view name);

struct LearningRate {
  RateSchedule schedule = RateSchedule::kCosine;
  double peak = 3e-4;
  double least = 3e-5;       // At total_steps, and after it; not kConstant.
  int64_t warmup_steps = 0;  // The first step has 1 / warmup_steps of the peak.
  // kWsd; those that warm-up leaves of the run, if there are fewer.
  int64_t decay_steps = 0;
  int64_t total_steps = 1;

  // `step` counts from 0. The rate of step total_steps, which is not taken
  // any more, would be the least.
  double At(int64_t step) const;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_LEARNING_RATE_H_
