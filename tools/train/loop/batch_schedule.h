// BatchSchedule: the sequences of each step of a run, which may grow at its
// beginning.
//
//   const BatchSchedule batches = {.batch = 16, .first = 4,
//                                  .warmup_steps = 100};
//   batches.At(0);               // 4, until step 33
//   batches.At(34);              // 8
//   batches.At(100);             // 16
//   batches.SamplesBefore(35);   // 34 * 4 + 8
//
// The batch grows by `first` at a time, at steps that are evenly spaced, as
// Megatron-LM's --rampup-batch-size by increments of the first batch. Nothing
// depends on the mesh: a step has the samples that follow those of the steps
// before it.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_BATCH_SCHEDULE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_BATCH_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::train {

// "4:100".
struct BatchWarmup {
  int64_t first = 0;  // Sequences of step 0.
  int64_t steps = 0;  // Those before the first one of the whole batch.
};

// nullopt unless `text` is two positive whole numbers, joined by a colon.
std::optional<BatchWarmup> ParseBatchWarmup(std::string_view text);

// Numbers that 64 bits cannot hold are the largest one.
struct BatchSchedule {
  // Sizes that the batch may have. Each needs a schedule of its own.
  static constexpr int64_t kMostSizes = 4096;

  int64_t batch = 1;         // From step warmup_steps on.
  int64_t first = 0;         // A divisor of `batch`, if there is a warm-up.
  int64_t warmup_steps = 0;  // 0: none.

  // The sequences of step `step`.
  int64_t At(int64_t step) const;

  // Those of the steps before `step`.
  int64_t SamplesBefore(int64_t step) const;

  // The first steps that have `samples` sequences together.
  int64_t StepsOf(int64_t samples) const;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_BATCH_SCHEDULE_H_
