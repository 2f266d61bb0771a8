// RemainingTime: estimates how long the rest of a run takes.
//
//   RemainingTime remaining(settings.steps, settings.eval_every > 0);
//   remaining.Add(step);  // as soon as it has ended
//   RemainingText(remaining.Estimate());  // "12m05s"
//
// The steps to come take the median of the last kRecentSteps, which neither a
// slow first step nor a pause changes. Time between steps that is not part of
// any, which is validation, adds its mean over the steps so far. The last
// checkpoint and the sample are not included.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_REMAINING_TIME_H_
#define TESSERA_TOOLS_TRAIN_REPORT_REMAINING_TIME_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tools/train/report/run_result.h"

namespace tessera::train {

struct RemainingEstimate {
  absl::Duration time = absl::ZeroDuration();
  // Validations are still to come, and none has been measured yet.
  bool without_validation = false;

  friend bool operator==(const RemainingEstimate&,
                         const RemainingEstimate&) = default;
};

// "42s", "12m05s", "3h07m" or "2d04h", with "+" if it is without validation;
// "-" without an estimate.
std::string RemainingText(const std::optional<RemainingEstimate>& estimate);

class RemainingTime {
 public:
  static constexpr size_t kRecentSteps = 25;

  // `steps` of the whole run; `validates` if some of them are validated.
  RemainingTime(int64_t steps, bool validates,
                std::function<absl::Time()> now = absl::Now)
      : steps_(steps), validates_(validates), now_(std::move(now)) {}

  // Adds a step that has just ended, with its validation.
  void Add(const StepMetrics& step);

  // nullopt before the first step.
  std::optional<RemainingEstimate> Estimate() const;

 private:
  const int64_t steps_;
  const bool validates_;
  const std::function<absl::Time()> now_;
  int64_t left_ = 0;            // Steps after the last one.
  std::deque<double> recent_;   // Seconds.
  bool has_validated_ = false;  // After the first step.
  // Since the end of the first step: time, seconds in steps, their number.
  absl::Time begin_;
  absl::Duration elapsed_;
  double in_steps_ = 0;
  int64_t count_ = -1;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_REMAINING_TIME_H_
