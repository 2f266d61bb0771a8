#include "tools/schedule/print_json.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/csv.h"

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

// The cells of each rank's line, as in the CSV.
Json RanksOf(const pipeline::Schedule& schedule) {
  Json ranks = Json::array();
  const std::string csv = pipeline::WriteCsv(schedule);
  std::string_view rest = csv;
  while (ranks.size() < schedule.ranks.size()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    ranks.push_back(Json::array());
    for (const std::string_view cell :
         absl::StrSplit(line, ',', absl::SkipEmpty())) {
      ranks.back().push_back(std::string(cell));
    }
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return ranks;
}

// As WriteJson has it: the rank of each stage.
Json MapOf(const pipeline::StageMap& map) {
  Json ranks = Json::array();
  for (int64_t stage = 0; stage < map.stages(); ++stage) {
    ranks.push_back(map.RankOf(static_cast<int32_t>(stage)));
  }
  return {{"ranks", std::move(ranks)}, {"two_way", map.two_way()}};
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
  json["map"] = MapOf(report.schedule.map);
  json["ranks"] = RanksOf(report.schedule);
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
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::tools
