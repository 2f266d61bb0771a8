#include "offload/optimizer/step_runner.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/parameter_range.h"

namespace tessera::offload {
namespace {

static_assert(kElementsOfPart % kLargestTile == 0);

struct Part {
  const ParameterRange* range;
  int64_t at;
};

std::vector<Part> PartsOf(std::span<const ParameterRange> ranges) {
  std::vector<Part> parts;
  for (const ParameterRange& range : ranges) {
    if (range.frozen) continue;
    for (int64_t at = 0; at < range.parameter.size(); at += kElementsOfPart) {
      parts.push_back({&range, at});
    }
  }
  return parts;
}

// `at` starts a block.
MomentPointer At(MomentPointer moment, int64_t at) {
  switch (moment.type) {
    case StoredMoment::kF64:
      moment.values += 8 * at;
      break;
    case StoredMoment::kF32:
      moment.values += 4 * at;
      break;
    case StoredMoment::kBF16:
      moment.values += 2 * at;
      break;
    case StoredMoment::kBlockwise8:
      moment.values += at;
      moment.largest += at / moment.block;
      break;
  }
  return moment;
}

// The bytes that a step over the ranges reads or writes.
int64_t Footprint(std::span<const ParameterRange> ranges) {
  int64_t bytes = 0;
  for (const ParameterRange& range : ranges) {
    if (range.frozen) continue;
    bytes += range.parameter.size_in_bytes() + range.gradient.size_in_bytes() +
             range.copy.size_in_bytes();
    for (const MomentSpan* moment : {&range.first, &range.second}) {
      bytes += MomentBytes(moment->format, moment->size).value_or(0);
    }
  }
  return bytes;
}

int64_t LastLevelCache() {
  constexpr int64_t kUsual = int64_t{32} << 20;
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? bytes : kUsual;
}

// The number of elements whose old bytes are saved at a time, so that they stay
// in the second-level cache until the step reads them. Whole tiles and blocks.
constexpr int64_t kElementsSaved = 8192;
static_assert(kElementsOfPart % kElementsSaved == 0 &&
              kElementsSaved % kLargestTile == 0);

// Calls visit(live, saved, bytes) for each array of elements [at, at + count)
// that a step overwrites, where `saved` is in range.undo. `at` starts a block.
template <typename Visit>
void ForEachOverwritten(const ParameterRange& range, int moments, int64_t at,
                        int64_t count, const Visit& visit) {
  std::byte* saved = range.undo.data();
  const auto add = [&](std::byte* live, int64_t width, int64_t begin, int64_t n,
                       int64_t all) {
    visit(live + begin * width, saved + begin * width,
          static_cast<size_t>(n * width));
    saved += all * width;
  };
  const int64_t size = range.parameter.size();
  add(range.parameter.data(), SizeInBytes(range.parameter.dtype()), at, count,
      size);
  const MomentSpan* const spans[] = {&range.first, &range.second};
  for (int i = 0; i < moments; ++i) {
    const MomentSpan& moment = *spans[i];
    const auto blocks = static_cast<int64_t>(moment.largest.size());
    const int64_t bytes = MomentBytes(moment.format, size).value_or(0) -
                          blocks * static_cast<int64_t>(sizeof(float));
    add(moment.values, size == 0 ? 0 : bytes / size, at, count, size);
    if (blocks == 0) continue;
    const int64_t block = moment.format.block;
    add(reinterpret_cast<std::byte*>(moment.largest.data()), sizeof(float),
        at / block, (count + block - 1) / block, blocks);
  }
}

// Executes a step of [at, at + count) that saves the data it overwrites.
void RunStepWithUndo(const RangesStep& step, const ParameterRange& range,
                     int64_t at, int64_t count, bool streams_copy) {
  const int64_t end = at + count;
  for (; at < end; at += kElementsSaved) {
    const int64_t some = std::min(kElementsSaved, end - at);
    ForEachOverwritten(range, step.moments, at, some,
                       [](const std::byte* live, std::byte* saved,
                          size_t bytes) { std::memcpy(saved, live, bytes); });
    StepJob job = JobOf(step, range, at, some);
    job.streams_copy = streams_copy;
    RunStep(job);
  }
}

}  // namespace

StepJob JobOf(const RangesStep& step, const ParameterRange& range, int64_t at,
              int64_t count) {
  StepJob job = {
      .rule = step.rule,
      .numbers = step.numbers,
      .parameter_type = range.parameter.dtype(),
      .gradient_type = range.gradient.dtype(),
      .copy_type = range.copy.dtype(),
      .parameter = range.parameter.At(at),
      .gradient = range.gradient.At(at),
      .copy = range.copy.empty() ? nullptr : range.copy.At(at),
      .count = count,
      .rounds_at_random = step.rounds_at_random,
      .random_key = step.random_key,
      .random_index = static_cast<uint32_t>(range.begin + at),
  };
  if (!range.decays) {
    job.numbers.kept = 1;
    job.numbers.decay_in_gradient = 0;
  }
  if (step.moments > 0) job.first = At(PointerTo(range.first), at);
  if (step.moments > 1) job.second = At(PointerTo(range.second), at);
  return job;
}

absl::Status RunRanges(const RangesStep& step,
                       std::span<const ParameterRange> ranges,
                       ThreadPool& pool) {
  TESSERA_RETURN_IF_ERROR(CheckRanges(ranges, step.moments),
                          Annotate(_, step.name));
  const std::vector<Part> parts = PartsOf(ranges);
  const bool streams_copy = Footprint(ranges) > LastLevelCache();
  pool.Run(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const auto& [range, at] = parts[static_cast<size_t>(i)];
    const int64_t count =
        std::min(kElementsOfPart, range->parameter.size() - at);
    if (!range->undo.empty()) {
      return RunStepWithUndo(step, *range, at, count, streams_copy);
    }
    StepJob job = JobOf(step, *range, at, count);
    job.streams_copy = streams_copy;
    RunStep(job);
  });
  return absl::OkStatus();
}

absl::Status UndoRanges(int moments, std::span<const ParameterRange> ranges,
                        ThreadPool& pool) {
  TESSERA_RETURN_IF_ERROR(CheckRanges(ranges, moments));
  for (const ParameterRange& range : ranges) {
    if (range.frozen || range.parameter.empty() || !range.undo.empty()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("range \"", range.name.substr(0, 80),
                     "\" has no undo; give the one "
                     "of the step"));
  }
  const std::vector<Part> parts = PartsOf(ranges);
  pool.Run(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const auto& [range, at] = parts[static_cast<size_t>(i)];
    ForEachOverwritten(*range, moments, at,
                       std::min(kElementsOfPart, range->parameter.size() - at),
                       [](std::byte* live, const std::byte* saved,
                          size_t bytes) { std::memcpy(live, saved, bytes); });
  });
  return absl::OkStatus();
}

uint32_t RandomKey(uint64_t seed, int64_t step) {
  // The mixer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
  uint64_t z = seed + static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}

absl::Status CheckNumbers(std::string_view optimizer,
                          std::initializer_list<NamedNumber> numbers) {
  for (const NamedNumber& number : numbers) {
    const bool is_below = number.limit == 0 || number.value < number.limit;
    if (std::isfinite(number.value) && number.value >= 0 && is_below) continue;
    const std::string allowed =
        number.limit == 0 ? std::string("a finite number of at least 0")
                          : absl::StrCat("at least 0 and below ", number.limit);
    return absl::InvalidArgumentError(absl::StrCat(optimizer, ": ", number.name,
                                                   " is ", number.value,
                                                   "; give ", allowed));
  }
  return absl::OkStatus();
}

absl::Status CheckThreads(std::string_view optimizer, int threads) {
  constexpr int kMost = 1024;
  if (threads >= 1 && threads <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(optimizer, ": ", threads, " threads; give 1 to ", kMost));
}

absl::Status CheckStep(std::string_view optimizer, int64_t step,
                       const StepScale& scale) {
  if (step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(optimizer, ": step ", step, "; the first one is step 1"));
  }
  return CheckNumbers(optimizer, {{"unscale", scale.unscale},
                                  {"clip_factor", scale.clip_factor}});
}

}  // namespace tessera::offload
