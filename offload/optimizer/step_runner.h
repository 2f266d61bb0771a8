// RunRanges: a step over ranges, in parts that threads take.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_STEP_RUNNER_H_
#define TESSERA_OFFLOAD_OPTIMIZER_STEP_RUNNER_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "offload/optimizer/parallel_for_pool.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_job.h"

namespace tessera::offload {

// Elements that a thread takes at a time: whole tiles, and whole blocks.
inline constexpr int64_t kElementsOfPart = int64_t{1} << 16;

struct RangesStep {
  StepRule rule = StepRule::kAdamW;
  int moments = 2;
  StepNumbers numbers;
  bool rounds_at_random = false;
  uint32_t random_key = 0;
};

// Checks all ranges (CheckRanges) before it writes anything. Copies go past the
// caches where the ranges are larger than the last-level one.
absl::Status RunRanges(const RangesStep& step,
                       std::span<const ParameterRange> ranges,
                       ParallelForPool& pool);

// The key of random rounding of a step.
uint32_t RandomKey(uint64_t seed, int64_t step);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_STEP_RUNNER_H_
