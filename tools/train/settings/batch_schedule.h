// The batch size of each step of a run, which may grow at the beginning.
//
//   const BatchSchedule batches = {.batch = 16, .first = 4,
//                                  .warmup_steps = 100};
//   batches.At(0);               // 4, until step 33
//   batches.At(34);              // 8
//   batches.At(100);             // 16
//   batches.SamplesBefore(35);   // 34 * 4 + 8
//
// The batch grows in increments of `first` at evenly spaced steps, like
// Megatron-LM's --rampup-batch-size with increments of the first batch. It does
// not depend on the mesh: the samples of a step follow those of earlier steps.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_BATCH_SCHEDULE_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_BATCH_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::train {

// The value of --batch_warmup, such as "4:100".
struct BatchWarmup {
  int64_t first = 0;  // Sequences in step 0.
  int64_t steps = 0;  // Steps before the first one with the whole batch.
};

// Returns nullopt unless `text` is two positive integers joined by a colon.
std::optional<BatchWarmup> ParseBatchWarmup(std::string_view text);

// Results saturate at the largest 64-bit integer.
struct BatchSchedule {
  // The maximum number of batch sizes. Each needs its own pipeline schedule.
  static constexpr int64_t kMostSizes = 4096;

  int64_t batch = 1;         // From step warmup_steps on.
  int64_t first = 0;         // A divisor of `batch`, if there is a warm-up.
  int64_t warmup_steps = 0;  // 0: no warm-up.

  // The number of sequences in step `step`.
  int64_t At(int64_t step) const;

  // The number of sequences in all steps before `step`.
  int64_t SamplesBefore(int64_t step) const;

  // The number of steps until at least `samples` sequences have been used.
  int64_t StepsOf(int64_t samples) const;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_BATCH_SCHEDULE_H_
