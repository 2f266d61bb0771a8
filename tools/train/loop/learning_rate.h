// LearningRate: linear warm-up, then half a cosine (Loshchilov and Hutter,
// SGDR, arXiv 1608.03983, without restarts).
#ifndef TESSERA_TOOLS_TRAIN_LOOP_LEARNING_RATE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_LEARNING_RATE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace tessera::train {

struct LearningRate {
  double peak = 3e-4;
  double least = 3e-5;       // At the end, and after it.
  int64_t warmup_steps = 0;  // The first step has 1 / warmup_steps of the peak.
  int64_t total_steps = 1;

  // Of step 0, 1, ...
  double At(int64_t step) const {
    if (step < warmup_steps) {
      return peak * static_cast<double>(step + 1) /
             static_cast<double>(warmup_steps);
    }
    const double span =
        static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1));
    const double done =
        std::min(static_cast<double>(step - warmup_steps) / span, 1.0);
    return least +
           (peak - least) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_LEARNING_RATE_H_
