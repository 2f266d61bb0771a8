// Executes an optimizer's step over ranges in parallel (RunRanges), undoes it
// (UndoRanges), and checks the arguments of optimizers.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_STEP_RUNNER_H_
#define TESSERA_OFFLOAD_OPTIMIZER_STEP_RUNNER_H_

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {

static_assert(static_cast<int>(MomentType::kF64) ==
                  static_cast<int>(StoredMoment::kF64) &&
              static_cast<int>(MomentType::kF32) ==
                  static_cast<int>(StoredMoment::kF32) &&
              static_cast<int>(MomentType::kBF16) ==
                  static_cast<int>(StoredMoment::kBF16) &&
              static_cast<int>(MomentType::kBlockwise8) ==
                  static_cast<int>(StoredMoment::kBlockwise8));

// The operand of a step kernel for a MomentSpan.
inline MomentPointer PointerTo(const MomentSpan& moment) {
  return {.type = static_cast<StoredMoment>(moment.format.type),
          .block = moment.format.block,
          .values = moment.values,
          .largest = moment.largest.data()};
}

// The number of elements that a thread processes at a time: whole tiles, and
// whole blocks.
inline constexpr int64_t kElementsOfPart = int64_t{1} << 16;

// The part of a step that is the same for all ranges.
struct RangesStep {
  std::string_view name;  // The optimizer's, for messages.
  StepRule rule = StepRule::kAdamW;
  int moments = 2;
  StepNumbers numbers;
  bool rounds_at_random = false;
  uint32_t random_key = 0;
};

// The job of elements [at, at + count) of a range that CheckRanges accepts;
// `at` starts a block of its moments.
StepJob JobOf(const RangesStep& step, const ParameterRange& range, int64_t at,
              int64_t count);

// Executes a step over ranges, in parts of kElementsOfPart. Checks all ranges
// (CheckRanges) before it writes anything; messages begin with the optimizer's
// name. Copies use streaming stores if the
// ranges exceed the last-level cache.
absl::Status RunRanges(const RangesStep& step,
                       std::span<const ParameterRange> ranges,
                       ThreadPool& pool);

// Restores, bit for bit, the parameters and moments that a step with the same
// `undo` has changed; copies are unchanged. InvalidArgument, with nothing
// written, as for CheckRanges, and for a range without undo.
absl::Status UndoRanges(int moments, std::span<const ParameterRange> ranges,
                        ThreadPool& pool);

// The key of a step's stochastic rounding.
uint32_t RandomKey(uint64_t seed, int64_t step);

// Checks of the arguments of an optimizer; messages begin with its name.

struct NamedNumber {
  std::string_view name;
  double value;
  double limit = 0;  // Values are below it; 0: no limit.
};

// InvalidArgument for the first number that is not finite, is negative, or is
// not below its limit.
absl::Status CheckNumbers(std::string_view optimizer,
                          std::initializer_list<NamedNumber> numbers);
absl::Status CheckThreads(std::string_view optimizer, int threads);
absl::Status CheckStep(std::string_view optimizer, int64_t step,
                       const StepScale& scale);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_STEP_RUNNER_H_
