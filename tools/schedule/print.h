// ScheduleReports as JSON.
#ifndef TESSERA_TOOLS_SCHEDULE_PRINT_H_
#define TESSERA_TOOLS_SCHEDULE_PRINT_H_

#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/terminal.h"
#include "tools/cli/cli.h"
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

// ScheduleReports as text, JSON or CSV.

struct PrintOptions {
  OutputFormat format = OutputFormat::kText;
  pipeline::TerminalOptions picture;
};

// Text: of one schedule what it is, whether it is valid, times, memory by rank
// and a picture; of several a table.
//
// JSON: see print_json.h.
//
// CSV: of one schedule the table that PyTorch reads; of several the table of
// text, with a header. An invalid schedule's table is as it was read.
//
// InvalidArgument where the picture cannot be drawn as asked.
absl::Status PrintReports(std::span<const ScheduleReport> reports,
                          const PrintOptions& options, std::ostream& out);

// What there is to draw: the schedules that are valid.
std::vector<pipeline::Exhibit> ExhibitsOf(
    std::span<const ScheduleReport> reports);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_PRINT_H_
