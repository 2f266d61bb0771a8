// The properties of a schedule that //tools/schedule prints.
#ifndef TESSERA_TOOLS_SCHEDULE_REPORT_H_
#define TESSERA_TOOLS_SCHEDULE_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"
#include "tools/schedule/source.h"

namespace tessera::tools {

// The values of the flags; those that a library parses are text.
struct ScheduleOptions {
  std::vector<std::string> schedules;
  std::string input;  // A file. Empty: none.
  ShapeOptions shape;
  CostOptions costs;
  int64_t memory_limit = 0;  // Bytes per rank; 0: no limit.
  bool lowered = false;      // Shows sends and receives.
};

struct ScheduleReport {
  std::string name;
  std::string origin;
  pipeline::Schedule schedule;  // As printed and priced.
  int64_t chunks = 1;
  int64_t memory_limit = 0;
  absl::Status validity;  // The result of Validate.
  // The unit of memory: bytes if true, otherwise micro-batches.
  bool has_bytes = false;

  // Set if the schedule is valid; times in milliseconds.
  std::optional<pipeline::Timeline> timeline;
  std::optional<double> lower_bound;  // For timeline->longest_stage.
  std::vector<int64_t> over_limit;    // The ranks that exceed the limit.
  std::vector<std::string>
      critical_path;  // "0F0", "1F0", ... in order of time.

  // The relative distance of longest_stage from its lower bound.
  std::optional<double> gap() const;
};

// Returns a report for each schedule in order, starting with that of the file.
// An invalid schedule has a report. A schedule that cannot be created is an
// error: InvalidArgument with the flag.
absl::StatusOr<std::vector<ScheduleReport>> MakeReports(
    const ScheduleOptions& options);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_REPORT_H_
