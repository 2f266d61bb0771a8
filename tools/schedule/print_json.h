// ScheduleReports as JSON.
#ifndef TESSERA_TOOLS_SCHEDULE_PRINT_JSON_H_
#define TESSERA_TOOLS_SCHEDULE_PRINT_JSON_H_

#include <span>
#include <string>

#include "tools/schedule/report.h"

namespace tessera::tools {

// Of one schedule an object: `schedule`, `origin`, `stages` (ranks),
// `chunks`, `microbatches`, `valid`, `error` (where it is not), `unit`,
// `makespan`, `longest_stage`, `bubble_rate`, `lower_bound`, `gap`,
// `memory_limit`, `exceeds_limit` (ranks), and lists by rank: `peak_memory`,
// `peak_activations`, `idle` (its bubble rate), `ranks` (its actions, "2F7");
// `map` (as WriteJson has it), `critical_path`. --input reads it again. What an
// invalid schedule has none of is null or empty. Of several: `schedules`, their
// list.
std::string ReportsToJson(std::span<const ScheduleReport> reports);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_PRINT_JSON_H_
