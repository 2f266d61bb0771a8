// ScheduleReport: what //tools/schedule says about a schedule, before it is
// printed.
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

// The flags, as text where a library parses them.
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
  pipeline::Schedule schedule;  // As it is printed and priced.
  int64_t chunks = 1;
  int64_t memory_limit = 0;
  absl::Status validity;  // Validate's words.
  // Whether memory is in bytes, not in micro-batches.
  bool has_bytes = false;

  // Where it is valid; times in milliseconds.
  std::optional<pipeline::Timeline> timeline;
  std::optional<double> lower_bound;       // Of timeline->longest_stage.
  std::vector<int64_t> over_limit;         // The ranks that exceed the limit.
  std::vector<std::string> critical_path;  // "0F0", "1F0", ... in time's order.

  // How far the longest stage may be from the best.
  std::optional<double> gap() const;
};

// One for each schedule in their order, that of the file first. A schedule
// that is wrong is a report too, one that cannot be made is an error:
// InvalidArgument names the flag.
absl::StatusOr<std::vector<ScheduleReport>> MakeReports(
    const ScheduleOptions& options);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_REPORT_H_
