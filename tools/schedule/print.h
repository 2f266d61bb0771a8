// PrintReports: ScheduleReports as text, JSON or CSV.
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

// For one schedule an object: `schedule`, `origin`, `stages` (ranks),
// `chunks`, `microbatches`, `valid`, `error` (if not), `unit`,
// `makespan`, `longest_stage`, `bubble_rate`, `lower_bound`, `gap`,
// `memory_limit`, `exceeds_limit` (ranks), and lists by rank: `peak_memory`,
// `peak_activations`, `idle` (its bubble rate), `ranks` (its actions, "2F7");
// `map` (see WriteJson), `critical_path`. --input reads it. Values that an
// invalid schedule does not have are null or empty. For several: `schedules`, a
// list.
std::string ReportsToJson(std::span<const ScheduleReport> reports);

struct PrintOptions {
  OutputFormat format = OutputFormat::kText;
  pipeline::TerminalOptions picture;
};

// Text: for one schedule its name, validity, times, memory by rank and a
// picture; for several a table.
//
// JSON: ReportsToJson.
//
// CSV: for one schedule the table that PyTorch reads, unchanged if it is
// invalid; for several the table of text, with a header.
//
// InvalidArgument if the picture cannot be drawn with these options.
absl::Status PrintReports(std::span<const ScheduleReport> reports,
                          const PrintOptions& options, std::ostream& out);

// The valid schedules, for drawing.
std::vector<pipeline::Exhibit> ExhibitsOf(
    std::span<const ScheduleReport> reports);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_PRINT_H_
