#include "tools/train/loop/snapshot_pace.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/arithmetic.h"
#include "base/quoted.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {
namespace {

// The first steps and copies allocate memory.
constexpr int64_t kIgnoredSteps = 4;
constexpr size_t kStepsOfAKind = 6;

}  // namespace

int64_t SnapshotInterval(double step, double copy, double failure) {
  constexpr double kMost = 1e9;
  const double young = std::round(std::sqrt(2 * copy * failure) / step);
  const double affordable = std::ceil(copy / (kSnapshotBudget * step));
  return static_cast<int64_t>(
      std::clamp(std::max(young, affordable), 1.0, kMost));
}

std::string FormatChoice(const SnapshotChoice& choice) {
  return absl::StrFormat("%d %.17g %.17g %.17g", choice.every,
                         choice.step_seconds, choice.copy_seconds,
                         choice.failure_seconds);
}

absl::StatusOr<SnapshotChoice> ParseChoice(std::string_view text) {
  const std::vector<std::string_view> fields = absl::StrSplit(text, ' ');
  SnapshotChoice choice;
  if (fields.size() == 4 && absl::SimpleAtoi(fields[0], &choice.every) &&
      absl::SimpleAtod(fields[1], &choice.step_seconds) &&
      absl::SimpleAtod(fields[2], &choice.copy_seconds) &&
      absl::SimpleAtod(fields[3], &choice.failure_seconds) &&
      choice.every > 0) {
    return choice;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("not a choice of --snapshot_every: ", Quoted(text)));
}

std::string DescribeChoice(const SnapshotChoice& choice) {
  const double share =
      choice.copy_seconds /
      (static_cast<double>(choice.every) * choice.step_seconds);
  return absl::StrFormat(
      "after every %s: a copy takes %.1f ms, a step %.1f ms, and a failure is "
      "expected every %s; %.2f %% of the time",
      choice.every == 1 ? "step" : absl::StrCat(choice.every, " steps"),
      1e3 * choice.copy_seconds, 1e3 * choice.step_seconds,
      absl::FormatDuration(absl::Seconds(std::round(choice.failure_seconds))),
      100 * share);
}

std::optional<SnapshotChoice> SnapshotPace::AddStep(double seconds) {
  const bool had_copy = has_copy_;
  has_copy_ = false;
  is_new_ = false;
  if (every_ != kAutomatic || ++measured_ <= kIgnoredSteps) return {};
  (had_copy ? with_ : without_).push_back(seconds);
  if (std::min(with_.size(), without_.size()) < kStepsOfAKind) return {};
  const double step = std::max(Median(without_), 1e-9);
  const double copy = std::max(Median(with_) - step, 0.0);
  Continue({.every = SnapshotInterval(step, copy, failure_),
            .step_seconds = step,
            .copy_seconds = copy,
            .failure_seconds = failure_});
  is_new_ = true;
  return choice_;
}

bool SnapshotPace::IsDue(int64_t steps) const {
  if (every_ == kAutomatic) return measured_ % 2 == 0;
  return is_new_ || steps % every_ == 0;
}

void SnapshotPace::Continue(const SnapshotChoice& choice) {
  choice_ = choice;
  every_ = choice.every;
}

}  // namespace tessera::train
