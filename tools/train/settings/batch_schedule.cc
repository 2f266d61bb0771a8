#include "tools/train/settings/batch_schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace tessera::train {
namespace {

int64_t Clamped(absl::int128 value) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return value > kMost ? kMost : static_cast<int64_t>(value);
}

// The first step whose batch has `size + 1` times the initial size. For `sizes
// - 1` it is the end of the warm-up.
int64_t BeginOf(int64_t size, int64_t sizes, int64_t warmup_steps) {
  const absl::int128 product = absl::int128(size) * warmup_steps;
  return static_cast<int64_t>((product + sizes - 2) / (sizes - 1));
}

}  // namespace

std::optional<BatchWarmup> ParseBatchWarmup(std::string_view text) {
  const std::pair<std::string_view, std::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  BatchWarmup warmup;
  if (!absl::SimpleAtoi(parts.first, &warmup.first) ||
      !absl::SimpleAtoi(parts.second, &warmup.steps) || warmup.first < 1 ||
      warmup.steps < 1) {
    return std::nullopt;
  }
  return warmup;
}

int64_t BatchSchedule::At(int64_t step) const {
  if (step >= warmup_steps) return batch;
  const int64_t sizes = batch / first;
  return first * (1 + Clamped(absl::int128(step) * (sizes - 1) / warmup_steps));
}

int64_t BatchSchedule::SamplesBefore(int64_t step) const {
  if (warmup_steps == 0) return Clamped(absl::int128(batch) * step);
  // From its first step on, each size adds `first` sequences per step.
  const int64_t sizes = batch / first;
  absl::int128 samples = 0;
  for (int64_t size = 0; size < sizes; ++size) {
    const int64_t begin = sizes == 1 ? 0 : BeginOf(size, sizes, warmup_steps);
    samples += absl::int128(std::max<int64_t>(step - begin, 0)) * first;
  }
  return Clamped(samples);
}

int64_t BatchSchedule::StepsOf(int64_t samples) const {
  const int64_t of_warmup = SamplesBefore(warmup_steps);
  if (samples >= of_warmup) {
    const absl::int128 rest = absl::int128(samples) - of_warmup;
    return Clamped(warmup_steps + (rest + batch - 1) / batch);
  }
  int64_t too_few = -1, enough = warmup_steps;
  while (enough - too_few > 1) {
    const int64_t middle = too_few + (enough - too_few) / 2;
    (SamplesBefore(middle) >= samples ? enough : too_few) = middle;
  }
  return enough;
}

}  // namespace tessera::train
