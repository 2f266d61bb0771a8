// ScheduleReport: the properties of a schedule that //tools/schedule prints.
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

// The flags; text if a library parses them.
struct ScheduleOptions {
  std::vector<std::string> schedules;
  std::string input;  // A file. Empty: none.
  ShapeOptions shape;
  CostOptions costs;
  int64_t memory_limit = 0;  // Bytes of a rank; 0: none.
  bool lowered = false;      // With sends and receives.
};

struct ScheduleReport {
  std::string name;
  std::string origin;
  pipeline::Schedule schedule;  // As printed and priced.
  int64_t chunks = 1;
  int64_t memory_limit = 0;
  absl::Status validity;  // The result of Validate.
  // True: memory is in bytes; false: in micro-batches.
  bool has_bytes = false;

  // Set if the schedule is valid; times in milliseconds.
  std::optional<pipeline::Timeline> timeline;
  std::optional<double> lower_bound;  // Of timeline->longest_stage.
  std::vector<int64_t> over_limit;    // The ranks that exceed the limit.
  std::vector<std::string>
      critical_path;  // "0F0", "1F0", ... in order of time.

  // longest_stage relative to its lower bound.
  std::optional<double> gap() const;
};

// One for each schedule in order, that of the file first. An invalid schedule
// has a report; one that cannot be made is an error: InvalidArgument with the
// flag.
absl::StatusOr<std::vector<ScheduleReport>> MakeReports(
    const ScheduleOptions& options);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_REPORT_H_
