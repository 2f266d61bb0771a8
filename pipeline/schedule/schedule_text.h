// Reads and writes schedules as text: as PyTorch's tables (CSV), or as JSON,
// which also keeps the schedule's name and map.
//
//   TESSERA_ASSIGN_OR_RETURN(Schedule schedule, ReadCsv(text));
//   std::string json = WriteJson(schedule);
//   TESSERA_ASSIGN_OR_RETURN(Schedule same, ReadJson(json));
#ifndef TESSERA_PIPELINE_SCHEDULE_SCHEDULE_TEXT_H_
#define TESSERA_PIPELINE_SCHEDULE_SCHEDULE_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Writes the table that PyTorch reads and writes: a line for each rank, a cell
// for each action, "0F0,0F1,,0B0". The table does not include the schedule's
// name.
std::string WriteCsv(const Schedule& schedule);

// Parses a table; `name` becomes the schedule's name. Empty cells (a rank that
// waits) are ignored. The largest indices determine the numbers of stages and
// micro-batches; a stage belongs to the rank whose line computes it. If two
// ranks compute a stage, one for the first half of the micro-batches and the
// other for the rest, the map is two-way. InvalidArgument, with line and cell,
// for invalid actions, a stage that no rank or the wrong ranks compute, or more
// than 16 Mi actions; Validate checks the schedule itself.
absl::StatusOr<Schedule> ReadCsv(std::string_view text,
                                 std::string_view name = "csv");

// The largest text that ReadJson accepts, in bytes.
inline constexpr size_t kMostJsonBytes = size_t{512} << 20;

// Writes a schedule as JSON:
//
//   {
//     "schedule": "1f1b",
//     "stages": 2,
//     "microbatches": 1,
//     "map": {"ranks": [0, 1], "two_way": false},
//     "ranks": [
//       ["0F0", "0B0"],
//       ["1F0", "1B0"]
//     ]
//   }
//
// Unlike the table, JSON keeps the schedule's name and map. The text has a line
// for each key and for each rank. The keys are
//   schedule      the name, UTF-8, at most 256 bytes
//   stages        the number of stages, which is the length of `map.ranks`
//   microbatches  the number of micro-batches, 0 to 16 Mi
//   map.ranks     the rank of each stage, as StageMap::Of takes them
//   map.two_way   whether ranks hold stages of both directions
//                 (StageMap::TwoWayOf)
//   ranks         for each rank its cells, in the notation of the tables: an
//                 action, "2F7", or a pair, "(0F8;7B4)OVERLAP_F_B" or
//                 "(1SEND_F3;1RECV_B0)"
// Bytes of the name that are not valid UTF-8 are replaced.
std::string WriteJson(const Schedule& schedule);

// Parses the JSON that WriteJson writes. All keys are required, in any order;
// duplicate and unknown keys are errors. Returns InvalidArgument, and never
// throws, for text that is not JSON, has another form, is larger than
// kMostJsonBytes, or has more than 16 Mi cells; the message names the location:
// "ranks[1][2]: ...". Validate checks the schedule itself.
absl::StatusOr<Schedule> ReadJson(std::string_view text);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_SCHEDULE_TEXT_H_
