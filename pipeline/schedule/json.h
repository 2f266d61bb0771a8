// Schedules as JSON text.
//
//   TESSERA_ASSIGN_OR_RETURN(Schedule schedule, ReadJson(text));
//   std::string again = WriteJson(schedule);
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
// Unlike the table (csv.h) it has the schedule's name and map, so that nothing
// is guessed and nothing lost.
#ifndef TESSERA_PIPELINE_SCHEDULE_JSON_H_
#define TESSERA_PIPELINE_SCHEDULE_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The most bytes that are read.
inline constexpr size_t kMostJsonBytes = size_t{512} << 20;

// A line for each rank, and each key:
//   schedule      its name, UTF-8, of at most 256 bytes
//   stages        how many there are, as many as `map.ranks` has entries
//   microbatches  how many there are, 0 to 16 Mi
//   map.ranks     the rank of each stage, as StageMap::Of takes them
//   map.two_way   whether ranks hold stages of both directions
//                 (StageMap::TwoWayOf)
//   ranks         for each rank its cells, in the notation of the tables: an
//                 action, "2F7", or a pair, "(0F8;7B4)OVERLAP_F_B" or
//                 "(1SEND_F3;1RECV_B0)"
// What is not UTF-8 in the name is replaced.
std::string WriteJson(const Schedule& schedule);

// All keys must be there, in any order, once, and no others. InvalidArgument,
// never an exception, for a text that is no JSON, or not of this form, or
// larger than kMostJsonBytes, or more than 16 Mi cells; the message says
// where: "ranks[1][2]: ...". Whether the schedule is right says Validate.
absl::StatusOr<Schedule> ReadJson(std::string_view text);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_JSON_H_
