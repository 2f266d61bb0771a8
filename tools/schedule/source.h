// What --times, --memory and the flags of links say, as costs of stages.
#ifndef TESSERA_TOOLS_SCHEDULE_SOURCE_H_
#define TESSERA_TOOLS_SCHEDULE_SOURCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::tools {

// Whose the times and bytes of --times and --memory are.
enum class CostsOf { kStage, kRank };

struct CostOptions {
  std::string times = "1,1,1,0";
  std::string memory = "1,0,-1";
  CostsOf of = CostsOf::kStage;
  double latency = 0;            // Milliseconds.
  double bandwidth = 0;          // GB/s; 0: messages take no time on the wire.
  int64_t activation_bytes = 0;  // Of a message, either way.
  double optimizer = 0;          // Milliseconds of a stage.
  bool overlap = true;
};

// "18.522,18.086,9.337,0.601": F, B, W and communication in milliseconds, the
// last of which may be missing. InvalidArgument where it is no such list, or a
// time is negative or more than 1e9.
absl::StatusOr<pipeline::StageCosts> ParseTimes(std::string_view text);

// "f,b,w": what the three add (more than 0) or free. The sizes are at most
// 2^50.
absl::Status ParseMemory(std::string_view text, pipeline::StageCosts& costs);

// A line for each stage: times as above, and where it likes ",f,b,w" after
// them, which count in place of what `memory` says. "#" begins a comment; empty
// lines are left out. InvalidArgument with the line; at most 2^20 stages.
absl::StatusOr<std::vector<pipeline::StageCosts>> ParseTimesFile(
    std::string_view text, std::string_view memory);

// The costs of `stages` stages, `chunks` of them on a rank, in milliseconds.
// Of a rank: each of its stages has an equal share of --times and --memory, and
// bytes that a forward adds and its backwards free stay in balance; a file says
// the times of stages and is as it is. InvalidArgument that names the flag;
// other codes where a file cannot be read.
absl::StatusOr<pipeline::Costs> MakeCosts(const CostOptions& options,
                                          int64_t stages, int64_t chunks);

// Where a schedule comes from: a generator, the synthesiser or a file.

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
