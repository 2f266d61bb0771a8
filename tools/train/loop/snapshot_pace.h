// The pace of copies in memory: the steps between them, fixed or, with
// --snapshot_every=auto, chosen from their measured cost.
//
// A copy that a step waits for costs time, and so do the steps that are
// repeated after a failure; the sum is least if the time between copies is
// sqrt(2 * cost of a copy * mean time between failures) (Young, A first order
// approximation to the optimum checkpoint interval, CACM 17(9), 1974).
//
//   SnapshotPace pace(kAutomatic, /*failure=*/1e6);
//   while (...) {
//     ...  // a step
//     if (const auto choice = pace.AddStep(seconds)) {
//       std::cerr << DescribeChoice(*choice) << "\n";
//     }
//     if (pace.IsDue(steps)) {
//       ...  // take copies
//       pace.AddCopy();
//     }
//   }
#ifndef TESSERA_TOOLS_TRAIN_LOOP_SNAPSHOT_PACE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_SNAPSHOT_PACE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/report/run_result.h"

namespace tessera::train {

// The largest share of the run's time that copies may take.
inline constexpr double kSnapshotBudget = 0.03;

// The steps between copies: Young's time, but at least 1, and as many as
// kSnapshotBudget requires. `step` is the seconds of a step without a copy,
// above 0; `copy` the seconds by which a copy makes a step longer; `failure`
// the mean seconds between failures of the run.
int64_t SnapshotInterval(double step, double copy, double failure);

// "12 0.25 0.003 1e6": the fields of a choice, exactly, and the reverse.
// InvalidArgument for other text.
std::string FormatChoice(const SnapshotChoice& choice);
absl::StatusOr<SnapshotChoice> ParseChoice(std::string_view text);

// The choice for people, in one line.
std::string DescribeChoice(const SnapshotChoice& choice);

class SnapshotPace {
 public:
  // `every` is --snapshot_every. `failure` is the mean time between failures of
  // the run in seconds, for kAutomatic.
  SnapshotPace(int64_t every, double failure)
      : every_(every), failure_(failure) {}

  // After a step, with its time. With kAutomatic every second step follows a
  // copy at first; once there are enough of both kinds, returns the choice, by
  // the difference of their medians. All ranks must give the same times.
  std::optional<SnapshotChoice> AddStep(double seconds);

  // A copy was taken after the last step.
  void AddCopy() { has_copy_ = true; }

  // True if a copy is due after `steps` steps of the run. One is due after the
  // choice, so that a run that goes on from it need not measure again.
  bool IsDue(int64_t steps) const;

  // The choice of AddStep or Continue, if there was one.
  const std::optional<SnapshotChoice>& choice() const { return choice_; }
  // Continues with an earlier choice.
  void Continue(const SnapshotChoice& choice);

 private:
  int64_t every_;
  const double failure_;
  int64_t measured_ = 0;   // Steps.
  bool has_copy_ = false;  // Taken after the last step.
  bool is_new_ = false;    // The choice was made by the last step.
  std::vector<double> with_, without_;
  std::optional<SnapshotChoice> choice_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_SNAPSHOT_PACE_H_
