// StepRecord: what a step of a run came to.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_STEP_RECORD_H_
#define TESSERA_TOOLS_TRAIN_LOOP_STEP_RECORD_H_

#include <cstdint>

namespace tessera::train {

// The same on every rank.
struct StepRecord {
  int64_t step = 0;  // From 0.
  double loss = 0;   // The mean over all tokens of the step.
  double gradient_norm = 0;
  double learning_rate = 0;
  double loss_scale = 1;
  bool skipped = false;  // The gradients were not finite.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_STEP_RECORD_H_
