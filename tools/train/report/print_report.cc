#include "tools/train/report/print_report.h"

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tessera::train {
namespace {

// A share as a percentage, a ratio as it is.
std::string Number(ReportRule rule, double value) {
  return rule == ReportRule::kStraggler
             ? absl::StrFormat("%.2f", value)
             : absl::StrFormat("%.1f %%", 100 * value);
}

}  // namespace

void PrintRunReport(const RunReport& report, std::ostream& out) {
  out << absl::StrFormat("report of %d steps, %.4g tokens/s\n", report.steps,
                         report.tokens_per_second);
  for (const Measurement& one : report.measurements) {
    out << absl::StrFormat(
        "%-8s %-13s %8s (%s %s): %s\n", one.broken ? "CHANGE" : "ok",
        ReportRuleName(one.rule), Number(one.rule, one.measured),
        IsUpperLimit(one.rule) ? "limit" : "at least",
        Number(one.rule, one.limit), one.meaning);
    if (one.broken) out << "         try " << one.change << "\n";
  }
  if (report.all_well()) out << "nothing holds the run back\n";
}

std::string RunReportAsJson(const RunReport& report) {
  nlohmann::ordered_json json;
  json["steps"] = report.steps;
  json["tokens_per_second"] = report.tokens_per_second;
  json["all_well"] = report.all_well();
  json["measurements"] = nlohmann::ordered_json::array();
  for (const Measurement& one : report.measurements) {
    json["measurements"].push_back({{"rule", ReportRuleName(one.rule)},
                                    {"measured", one.measured},
                                    {"limit", one.limit},
                                    {"broken", one.broken},
                                    {"rank", one.rank},
                                    {"meaning", one.meaning},
                                    {"change", one.change}});
  }
  return json.dump(2) + "\n";
}

}  // namespace tessera::train
