// Schedules as the tables that PyTorch reads and writes: a line for each rank,
// a cell for each action, "0F0,0F1,,0B0". Cells may be empty (a rank that
// waits) and have no meaning then.
//
//   TESSERA_ASSIGN_OR_RETURN(Schedule schedule, ReadCsv(text));
//   std::string again = WriteCsv(schedule);
#ifndef TESSERA_PIPELINE_SCHEDULE_CSV_H_
#define TESSERA_PIPELINE_SCHEDULE_CSV_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The table of a schedule's actions. Its name is not in it.
std::string WriteCsv(const Schedule& schedule);

// The schedule of a table, named `name`. Stages and micro-batches are as many
// as the largest number tells; a stage is the rank's whose line computes it. A
// table in which two ranks compute a stage, one for the first half of the
// micro-batches and the other for the rest, is two-way. InvalidArgument, with
// line and cell, for anything that is no action, a stage that no rank or the
// wrong ranks compute, or more than 16 Mi actions; whether the schedule is
// right says Validate.
absl::StatusOr<Schedule> ReadCsv(std::string_view text,
                                 std::string_view name = "csv");

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_CSV_H_
