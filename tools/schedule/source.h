// The input of //tools/schedule: schedules from a generator, the synthesiser or
// a file (MakeSchedule, ReadSchedule), and the costs of stages from --times,
// --memory and the flags of links (MakeCosts).
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

// The unit of --times and --memory: a stage, or all stages of a rank.
enum class CostsOf { kStage, kRank };

struct CostOptions {
  std::string times = "1,1,1,0";
  std::string memory = "1,0,-1";
  CostsOf of = CostsOf::kStage;
  double latency = 0;            // Milliseconds.
  double bandwidth = 0;          // GB/s; 0: messages take no time on the wire.
  int64_t activation_bytes = 0;  // Per message, in either direction.
  double optimizer = 0;          // Milliseconds per stage.
  bool overlap = true;
};

// "18.522,18.086,9.337,0.601": F, B, W and optional communication in
// milliseconds. InvalidArgument for a malformed list, or a time that is
// negative or above 1e9.
absl::StatusOr<pipeline::StageCosts> ParseTimes(std::string_view text);

// "f,b,w": the bytes that the three passes add (above 0) or free, each at most
// 2^50.
absl::Status ParseMemory(std::string_view text, pipeline::StageCosts& costs);

// Parses a file with a line for each of at most 2^20 stages: times as above,
// optionally followed by ",f,b,w", which overrides `memory`. "#" begins a
// comment; empty lines are ignored. InvalidArgument with the line.
absl::StatusOr<std::vector<pipeline::StageCosts>> ParseTimesFile(
    std::string_view text, std::string_view memory);

// The costs of `stages` stages, of which each rank has `chunks`, in
// milliseconds. With CostsOf::kRank, the stages of a rank share --times and
// --memory equally, and the bytes that a forward pass adds equal those that its
// backward passes free; a file always contains the times of stages.
// InvalidArgument with the flag; other codes if a file cannot be read.
absl::StatusOr<pipeline::Costs> MakeCosts(const CostOptions& options,
                                          int64_t stages, int64_t chunks);

struct ShapeOptions {
  std::optional<int64_t> stages;        // Ranks. Default: 4, or the file's.
  std::optional<int64_t> microbatches;  // Default: 8, or the file's.
  int64_t chunks = 0;                   // 0: the method's default.
};

struct SourcedSchedule {
  pipeline::Schedule schedule;
  int64_t chunks = 1;
  pipeline::Costs costs;
  std::string origin;        // The paper or the method.
  int64_t memory_limit = 0;  // The limit for its synthesis or its check.
};

// "auto", "zb_1p", "zb_2p" and the generators' names.
std::vector<std::string> ScheduleNames();

// Creates the schedule of that name. zb_1p and zb_2p are synthesised for a
// memory limit of p and 2p times the bytes of a forward pass, unless another
// limit is given, and have one stage per rank if chunks is 1. auto may also
// give each rank two stages, one for each direction of micro-batches.
// InvalidArgument with the flag.
absl::StatusOr<SourcedSchedule> MakeSchedule(std::string_view name,
                                             const ShapeOptions& shape,
                                             const CostOptions& costs,
                                             int64_t memory_limit);

// Reads the schedule in a CSV or JSON file without validating it.
// FailedPrecondition if it is not a schedule; InvalidArgument if its counts
// contradict `shape`; other codes if the file cannot be read.
absl::StatusOr<SourcedSchedule> ReadSchedule(const std::string& path,
                                             const ShapeOptions& shape,
                                             const CostOptions& costs,
                                             int64_t memory_limit);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_SOURCE_H_
