// PrintRunReport: a RunReport for people and for programs.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_PRINT_REPORT_H_
#define TESSERA_TOOLS_TRAIN_REPORT_PRINT_REPORT_H_

#include <ostream>
#include <string>

#include "tools/train/report/run_report.h"

namespace tessera::train {

// A line for each measurement, and under those that are out of their limits
// what to change.
void PrintRunReport(const RunReport& report, std::ostream& out);

// An object with the keys steps, tokens_per_second, all_well and measurements
// (each with rule, measured, limit, broken, rank, meaning, change). Ends with a
// line feed.
std::string RunReportAsJson(const RunReport& report);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_PRINT_REPORT_H_
