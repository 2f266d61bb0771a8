// What --times, --memory and the flags of links say, as costs of stages.
#ifndef TESSERA_TOOLS_SCHEDULE_COSTS_H_
#define TESSERA_TOOLS_SCHEDULE_COSTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_COSTS_H_
