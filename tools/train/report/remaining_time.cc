#include "tools/train/report/remaining_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/arithmetic.h"

namespace tessera::train {

std::string RemainingText(const std::optional<RemainingEstimate>& estimate) {
  if (!estimate.has_value()) return "-";
  const int64_t seconds = std::llround(absl::ToDoubleSeconds(estimate->time));
  const int64_t minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  const std::string text =
      days > 0      ? absl::StrFormat("%dd%02dh", days, hours % 24)
      : hours > 0   ? absl::StrFormat("%dh%02dm", hours, minutes % 60)
      : minutes > 0 ? absl::StrFormat("%dm%02ds", minutes, seconds % 60)
                    : absl::StrFormat("%ds", seconds);
  return absl::StrCat(text, estimate->without_validation ? "+" : "");
}

void RemainingTime::Add(const StepMetrics& step) {
  const absl::Time now = now_();
  left_ = std::max<int64_t>(steps_ - step.record.step - 1, 0);
  if (++count_ == 0) {
    begin_ = now;
    recent_ = {step.seconds};
    return;
  }
  // The first step, which allocates, counts only while it is alone.
  if (count_ == 1) recent_.clear();
  recent_.push_back(step.seconds);
  if (recent_.size() > kRecentSteps) recent_.pop_front();
  in_steps_ += step.seconds;
  elapsed_ = now - begin_;
  has_validated_ = has_validated_ || step.record.eval_loss.has_value();
}

std::optional<RemainingEstimate> RemainingTime::Estimate() const {
  if (recent_.empty()) return std::nullopt;
  double seconds = Median({recent_.begin(), recent_.end()});
  if (has_validated_) {
    const double outside = absl::ToDoubleSeconds(elapsed_) - in_steps_;
    seconds += std::max(outside, 0.0) / static_cast<double>(count_);
  }
  return RemainingEstimate{
      .time = absl::Seconds(seconds * static_cast<double>(left_)),
      .without_validation = validates_ && !has_validated_ && left_ > 0};
}

}  // namespace tessera::train
