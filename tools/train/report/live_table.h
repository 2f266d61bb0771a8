// LiveTable: prints a run's steps as a table for its user.
//
//   LiveTable table(std::cerr, {.is_terminal = true, .steps = 60});
//   table.Add(step, remaining.Estimate());
//   table.Finish();
//
//  step    loss grad norm       lr tokens/s  memory comp comm bubb offl    eta
//  7/60  3.2512     0.512 2.81e-03     9012  31 MiB  72%  15%   9%   4%  2m05s
//
// The last column is the remaining time (remaining_time.h), with "+" while it
// does not include validations that are to come.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_LIVE_TABLE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_LIVE_TABLE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tools/train/report/remaining_time.h"
#include "tools/train/report/run_result.h"

namespace tessera::train {

struct LiveTableOptions {
  // On a terminal one line is rewritten at each step. Otherwise there is a line
  // for the first and the last step, for every twentieth of the run, after
  // each validation, and whenever `interval` has passed.
  bool is_terminal = false;
  int64_t steps = 1;  // Of the whole run.
  absl::Duration interval = absl::Seconds(10);
  std::function<absl::Time()> now = absl::Now;
};

// Without a line feed.
std::string LiveTableHeader();
std::string LiveTableRow(const StepMetrics& step, int64_t steps,
                         const std::optional<RemainingEstimate>& remaining);

class LiveTable {
 public:
  // `out` outlives this.
  LiveTable(std::ostream& out, LiveTableOptions options)
      : out_(out), options_(std::move(options)) {}
  ~LiveTable() { Finish(); }

  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  void Add(const StepMetrics& step,
           const std::optional<RemainingEstimate>& remaining);
  // Ends the current line of a terminal, so that others can write.
  void Finish();

 private:
  bool IsDue(int64_t step) const;

  std::ostream& out_;
  const LiveTableOptions options_;
  bool has_header_ = false;
  bool is_in_line_ = false;
  absl::Time last_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_LIVE_TABLE_H_
