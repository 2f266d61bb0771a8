// Schedules as text: PyTorch's tables (CSV), and JSON, which also keeps the
// schedule's name and map.
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

// Schedules as the tables that PyTorch reads and writes: a line for each rank,
// a cell for each action, "0F0,0F1,,0B0". Cells may be empty (a rank that
// waits) and have no meaning then.
//
//   TESSERA_ASSIGN_OR_RETURN(Schedule schedule, ReadCsv(text));
//   std::string again = WriteCsv(schedule);

// The table of a schedule's actions. Its name is not in it.
std::string WriteCsv(const Schedule& schedule);

// Parses a table; `name` becomes the schedule's name. The largest numbers
// determine the numbers of stages and micro-batches; a stage belongs to the
// rank whose line computes it. A table in which two ranks compute a stage, one
// for the first half of the micro-batches and the other for the rest, is
// two-way. InvalidArgument, with line and cell, for invalid actions, a stage
// that no rank or the wrong ranks compute, or more than 16 Mi actions; Validate
// checks the schedule itself.
absl::StatusOr<Schedule> ReadCsv(std::string_view text,
                                 std::string_view name = "csv");

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
// Unlike the table it has the schedule's name and map, so that nothing
// is guessed and nothing lost.

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
// Bytes of the name that are not UTF-8 are replaced.
std::string WriteJson(const Schedule& schedule);

// All keys are required, in any order, without duplicates or others.
// InvalidArgument, never an exception, for text that is not JSON, not of this
// form, larger than kMostJsonBytes, or has more than 16 Mi cells; the message
// has the place: "ranks[1][2]: ...". Validate proves the schedule itself.
absl::StatusOr<Schedule> ReadJson(std::string_view text);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_SCHEDULE_TEXT_H_
