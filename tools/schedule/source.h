// Where a schedule comes from: a generator, the synthesiser or a file.
#ifndef TESSERA_TOOLS_SCHEDULE_SOURCE_H_
#define TESSERA_TOOLS_SCHEDULE_SOURCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "tools/schedule/costs.h"

namespace tessera::tools {

struct ShapeOptions {
  std::optional<int64_t> stages;        // Ranks. Not set: 4, or the file's.
  std::optional<int64_t> microbatches;  // Not set: 8, or the file's.
  int64_t chunks = 0;                   // 0: the method's own.
};

struct SourcedSchedule {
  pipeline::Schedule schedule;
  int64_t chunks = 1;
  pipeline::Costs costs;
  std::string origin;        // The paper, or how it was made.
  int64_t memory_limit = 0;  // That it was made for, or is held against.
};

// "auto", "zb_1p", "zb_2p" and the generators' names.
std::vector<std::string> ScheduleNames();

// The schedule of that name. zb_1p and zb_2p are synthesised for a limit of p
// and 2p times what a forward adds, unless another is given, with a stage on
// each rank where chunks are 1; auto may also give each rank two, one for each
// way that micro-batches go. InvalidArgument that names the flag.
absl::StatusOr<SourcedSchedule> MakeSchedule(std::string_view name,
                                             const ShapeOptions& shape,
                                             const CostOptions& costs,
                                             int64_t memory_limit);

// The schedule of a file, CSV or JSON, as it is: whether it is right says
// Validate. FailedPrecondition where it is no schedule; InvalidArgument where
// it has other counts than `shape`; other codes where it cannot be read.
absl::StatusOr<SourcedSchedule> ReadSchedule(const std::string& path,
                                             const ShapeOptions& shape,
                                             const CostOptions& costs,
                                             int64_t memory_limit);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_SOURCE_H_
