#include "tools/schedule/print.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::tools {

namespace {

using pipeline::RankTimeline;
using pipeline::Timeline;
using Json = nlohmann::ordered_json;

void AddByRank(const Timeline& timeline, Json& json) {
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const RankTimeline& line = timeline.ranks[rank];
    json["peak_memory"].push_back(line.peak_bytes);
    json["peak_activations"].push_back(line.peak_activations);
    json["idle"].push_back(timeline.BubbleRate(static_cast<int32_t>(rank)));
  }
}

Json JsonOf(const ScheduleReport& report) {
  const bool is_priced = report.timeline.has_value();
  const auto number = [&](double value) {
    return is_priced ? Json(value) : Json();
  };
  const Timeline timeline = report.timeline.value_or(Timeline());
  Json json = {{"schedule", report.name},
               {"origin", report.origin},
               {"stages", report.schedule.map.ranks()},
               {"chunks", report.chunks},
               {"microbatches", report.schedule.microbatches},
               {"valid", report.validity.ok()}};
  if (!report.validity.ok()) {
    json["error"] = std::string(report.validity.message());
  }
  json["unit"] = "ms";
  json["makespan"] = number(timeline.makespan);
  json["longest_stage"] = number(timeline.longest_stage);
  json["bubble_rate"] = number(timeline.BubbleRate());
  json["lower_bound"] = number(report.lower_bound.value_or(0));
  json["gap"] = report.gap().has_value() ? Json(*report.gap()) : Json();
  json["memory_limit"] =
      report.memory_limit > 0 ? Json(report.memory_limit) : Json();
  json["exceeds_limit"] = report.over_limit;
  json["peak_memory"] = Json::array();
  json["peak_activations"] = Json::array();
  json["idle"] = Json::array();
  AddByRank(timeline, json);
  const Json schedule = Json::parse(pipeline::WriteJson(report.schedule));
  json["map"] = schedule["map"];
  json["ranks"] = schedule["ranks"];
  json["critical_path"] = report.critical_path;
  return json;
}

}  // namespace

std::string ReportsToJson(std::span<const ScheduleReport> reports) {
  Json json;
  if (reports.size() == 1) {
    json = JsonOf(reports.front());
  } else {
    json["schedules"] = Json::array();
    for (const ScheduleReport& report : reports) {
      json["schedules"].push_back(JsonOf(report));
    }
  }
  return DumpJson(json) + "\n";
}

namespace {

std::string Milliseconds(double time) { return absl::StrFormat("%.6g", time); }

int64_t PeakBytes(const Timeline& timeline) {
  int64_t peak = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    peak = std::max(peak, rank.peak_bytes);
  }
  return peak;
}

int64_t PeakActivations(const Timeline& timeline) {
  int64_t peak = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    peak = std::max(peak, rank.peak_activations);
  }
  return peak;
}

// --- The table of several ---

constexpr std::string_view kColumns[] = {
    "schedule",     "stages",           "chunks",        "microbatches",
    "valid",        "makespan",         "longest_stage", "bubble_rate",
    "peak_memory",  "peak_activations", "lower_bound",   "gap",
    "exceeds_limit"};

std::vector<std::string> CellsOf(const ScheduleReport& report) {
  std::vector<std::string> cells = {
      report.name, absl::StrCat(report.schedule.map.ranks()),
      absl::StrCat(report.chunks), absl::StrCat(report.schedule.microbatches),
      report.validity.ok() ? "yes" : "no"};
  if (!report.timeline.has_value()) {
    cells.resize(std::size(kColumns));
    return cells;
  }
  const Timeline& timeline = *report.timeline;
  for (const std::string& cell :
       {Milliseconds(timeline.makespan), Milliseconds(timeline.longest_stage),
        absl::StrFormat("%.4f", timeline.BubbleRate()),
        absl::StrCat(PeakBytes(timeline)),
        absl::StrCat(PeakActivations(timeline)),
        report.lower_bound ? Milliseconds(*report.lower_bound) : "",
        report.gap() ? absl::StrFormat("%.4f", *report.gap()) : "",
        absl::StrCat(report.over_limit.size())}) {
    cells.push_back(cell);
  }
  return cells;
}

// A cell of a CSV, quoted if required (RFC 4180).
std::string CsvCell(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) return cell;
  return absl::StrCat("\"", absl::StrJoin(absl::StrSplit(cell, '"'), "\"\""),
                      "\"");
}

void PrintTableAsCsv(std::span<const ScheduleReport> reports,
                     std::ostream& out) {
  out << absl::StrJoin(kColumns, ",") << "\n";
  for (const ScheduleReport& report : reports) {
    out << absl::StrJoin(CellsOf(report), ",",
                         [](std::string* text, const std::string& cell) {
                           absl::StrAppend(text, CsvCell(cell));
                         })
        << "\n";
  }
}

void PrintTable(std::span<const ScheduleReport> reports, std::ostream& out) {
  std::vector<std::vector<std::string>> rows = {
      {std::begin(kColumns), std::end(kColumns)}};
  for (const ScheduleReport& report : reports) rows.push_back(CellsOf(report));
  std::vector<size_t> widths(std::size(kColumns));
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const int width = static_cast<int>(widths[i]);
      absl::StrAppend(&line, i == 0 ? "" : "  ",
                      absl::StrFormat("%*s", i == 0 ? -width : width, row[i]));
    }
    out << line << "\n";
  }
}

void PrintNotes(std::span<const ScheduleReport> reports, std::ostream& out) {
  bool differ = false;
  for (const ScheduleReport& report : reports) {
    differ |= report.chunks != reports.front().chunks;
    if (!report.validity.ok()) {
      out << report.name << ": not valid: " << report.validity.message()
          << "\n";
    }
  }
  out << "times in ms, memory in bytes of a rank; gap: of longest_stage to "
         "lower_bound\n";
  if (differ) {
    out << "--times_of=rank shares a rank's times among its chunks, so that "
           "all train the same model\n";
  }
}

// --- One, as text ---

void PrintHeading(const ScheduleReport& report, std::ostream& out) {
  out << report.name << ": " << report.schedule.map.ranks() << " stages";
  if (report.chunks > 1) out << " of " << report.chunks << " chunks";
  out << ", " << report.schedule.microbatches
      << (report.schedule.microbatches == 1 ? " micro-batch"
                                            : " micro-batches");
  if (!report.origin.empty()) out << "; " << report.origin;
  out << "\n";
}

void PrintTimes(const ScheduleReport& report, std::ostream& out) {
  const Timeline& timeline = *report.timeline;
  out << "valid: every micro-batch once, in order, and no deadlock\n"
      << absl::StrFormat(
             "makespan %s ms, longest stage %s ms, bubble rate %.4f\n",
             Milliseconds(timeline.makespan),
             Milliseconds(timeline.longest_stage), timeline.BubbleRate());
  if (report.gap().has_value()) {
    out << absl::StrFormat(
        "no schedule is below %s ms%s: at most %.2f %% above the best\n",
        Milliseconds(*report.lower_bound),
        report.memory_limit > 0 && report.over_limit.empty()
            ? " within the limit"
            : "",
        100 * *report.gap());
  }
  if (report.memory_limit > 0) {
    out << "memory limit " << report.memory_limit << ": "
        << (report.over_limit.empty()
                ? "kept"
                : absl::StrCat("exceeded by ranks ",
                               absl::StrJoin(report.over_limit, ", ")))
        << "\n";
  }
}

void PrintRanks(const Timeline& timeline, std::ostream& out) {
  out << "\n  rank   peak memory  activations  computes ms    idle\n";
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const RankTimeline& line = timeline.ranks[rank];
    out << absl::StrFormat(
        "%6d %13d %12d %12s %6.2f%%\n", rank, line.peak_bytes,
        line.peak_activations, Milliseconds(line.busy),
        100 * timeline.BubbleRate(static_cast<int32_t>(rank)));
  }
  out << "\n";
}

absl::Status PrintOne(const ScheduleReport& report,
                      const pipeline::TerminalOptions& picture,
                      std::ostream& out) {
  PrintHeading(report, out);
  if (!report.timeline.has_value()) {
    out << "not valid: " << report.validity.message() << "\n";
    return absl::OkStatus();
  }
  std::vector<pipeline::Exhibit> exhibits = ExhibitsOf({&report, 1});
  exhibits.front().title.clear();
  TESSERA_ASSIGN_OR_RETURN(
      const std::string drawing,
      pipeline::DrawTerminal(exhibits, pipeline::kMilliseconds, picture));
  PrintTimes(report, out);
  PrintRanks(*report.timeline, out);
  out << drawing;
  return absl::OkStatus();
}

}  // namespace

absl::Status PrintReports(std::span<const ScheduleReport> reports,
                          const PrintOptions& options, std::ostream& out) {
  const bool is_one = reports.size() == 1;
  switch (options.format) {
    case OutputFormat::kJson:
      out << ReportsToJson(reports);
      return absl::OkStatus();
    case OutputFormat::kCsv:
      if (is_one) {
        out << pipeline::WriteCsv(reports.front().schedule);
      } else {
        PrintTableAsCsv(reports, out);
      }
      return absl::OkStatus();
    case OutputFormat::kText:
      break;
  }
  if (is_one) return PrintOne(reports.front(), options.picture, out);
  PrintTable(reports, out);
  PrintNotes(reports, out);
  return absl::OkStatus();
}

std::vector<pipeline::Exhibit> ExhibitsOf(
    std::span<const ScheduleReport> reports) {
  std::vector<pipeline::Exhibit> exhibits;
  for (const ScheduleReport& report : reports) {
    if (!report.timeline.has_value()) continue;
    exhibits.push_back({report.name, *report.timeline, report.memory_limit});
    if (report.has_bytes) continue;
    for (RankTimeline& rank : exhibits.back().timeline.ranks) {
      rank.memory.clear();
    }
  }
  return exhibits;
}

}  // namespace tessera::tools
