// Prints ScheduleReports as text, JSON or CSV.
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

// For a single schedule, an object with the keys `schedule`, `origin`, `stages`
// (the number of ranks), `chunks`, `microbatches`, `valid`, `error` (if
// invalid), `unit`, `makespan`, `longest_stage`, `bubble_rate`, `lower_bound`,
// `gap`, `memory_limit`, `exceeds_limit` (a list of ranks), `map` (see
// WriteJson), `critical_path`, and with one element per rank `peak_memory`,
// `peak_activations`, `idle` (bubble rate) and `ranks` (actions such as "2F7").
// Values that an invalid schedule does not have are null or empty. --input
// reads this format. For several schedules, an object with the list
// `schedules`.
std::string ReportsToJson(std::span<const ScheduleReport> reports);

struct PrintOptions {
  OutputFormat format = OutputFormat::kText;
  pipeline::TerminalOptions picture;
};

// Text: for a single schedule its name, validity, times, memory by rank and a
// picture; for several a table.
//
// JSON: ReportsToJson.
//
// CSV: for a single schedule the table that PyTorch reads, which is unchanged
// if the schedule is invalid; for several the table of the text format, with a
// header.
//
// InvalidArgument if the picture cannot be drawn with these options.
absl::Status PrintReports(std::span<const ScheduleReport> reports,
                          const PrintOptions& options, std::ostream& out);

// The valid schedules, as input for drawing.
std::vector<pipeline::Exhibit> ExhibitsOf(
    std::span<const ScheduleReport> reports);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_PRINT_H_
