#include "pipeline/schedule/json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/action.h"
#include "pipeline/schedule/stage_map.h"

namespace tessera::pipeline {
namespace {

using nlohmann::json;

constexpr size_t kMostNameBytes = 256;
constexpr int64_t kMostCells = int64_t{16} << 20;

struct MapFields {
  int64_t stages = 0;
  std::vector<int64_t> ranks;  // By stage.
  bool two_way = false;
};

absl::StatusOr<StageMap> MapOf(const MapFields& fields) {
  const auto given = static_cast<int64_t>(fields.ranks.size());
  if (given != fields.stages) {
    return absl::InvalidArgumentError(
        absl::StrCat("map.ranks has ", given, " entries for ", fields.stages,
                     " stages; it has the rank of each"));
  }
  std::vector<int32_t> rank_of(fields.ranks.begin(), fields.ranks.end());
  TESSERA_ASSIGN_OR_RETURN(StageMap map,
                           fields.two_way
                               ? StageMap::TwoWayOf(std::move(rank_of))
                               : StageMap::Of(std::move(rank_of)),
                           Annotate(_, "map.ranks"));
  return map;
}

// The actions of one cell, found at `path`.
void ReadCell(const json& cell, const std::string& path,
              std::vector<Action>& actions, JsonProblems& problems) {
  if (!cell.is_string()) {
    return problems.Add(absl::StrCat(path, " is ", DescribeJson(cell),
                                     "; use a string such as \"0F0\""));
  }
  const auto parsed = ParseCell(cell.get_ref<const std::string&>());
  if (!parsed.ok()) {
    return problems.Add(absl::StrCat(path, ": ", parsed.status().message()));
  }
  if (parsed->empty()) {
    return problems.Add(absl::StrCat(path, " is empty; leave it out"));
  }
  actions.insert(actions.end(), parsed->begin(), parsed->end());
}

std::vector<std::vector<Action>> ReadRanks(const json& lists,
                                           JsonProblems& problems) {
  std::vector<std::vector<Action>> ranks;
  int64_t cells = 0;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    const json& list = lists[rank];
    std::vector<Action>& actions = ranks.emplace_back();
    if (!list.is_array()) {
      problems.Add(absl::StrCat("ranks[", rank, "] is ", DescribeJson(list),
                                "; use an array of strings"));
      continue;
    }
    cells += static_cast<int64_t>(list.size());
    if (cells > kMostCells) {
      problems.Add(absl::StrCat("more than ", kMostCells, " cells"));
      break;
    }
    for (size_t at = 0; at < list.size(); ++at) {
      ReadCell(list[at], absl::StrCat("ranks[", rank, "][", at, "]"), actions,
               problems);
    }
  }
  return ranks;
}

absl::Status CheckActions(const Schedule& schedule) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (action.stage < schedule.map.stages() &&
          action.microbatch < schedule.microbatches) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "ranks[", rank, "] has ", action.ToString(), "; there are ",
          schedule.map.stages(), " stages and ", schedule.microbatches,
          " micro-batches, numbered from 0"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> ScheduleOf(const json& document) {
  JsonProblems problems;
  JsonReader reader(document, "", problems);
  Schedule schedule;
  schedule.name = reader.Text("schedule");
  if (schedule.name.size() > kMostNameBytes) {
    reader.Refuse("schedule", absl::StrCat("a name of ", schedule.name.size(),
                                           " bytes; at most ", kMostNameBytes,
                                           " are allowed"));
  }
  MapFields fields;
  fields.stages = reader.Integer("stages", 1, StageMap::kMostStages);
  schedule.microbatches = static_cast<int32_t>(
      reader.Integer("microbatches", 0, int64_t{kMostIndex} + 1));
  JsonReader map = reader.Child("map");
  fields.ranks = map.Integers("ranks", 0, StageMap::kMostStages - 1);
  fields.two_way = map.Boolean("two_way");
  map.RefuseOtherKeys();
  schedule.ranks = ReadRanks(reader.Array("ranks"), problems);
  reader.RefuseOtherKeys();
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the schedule"));
  TESSERA_ASSIGN_OR_RETURN(schedule.map, MapOf(fields));
  const auto given = static_cast<int64_t>(schedule.ranks.size());
  if (given != schedule.map.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks has ", given, " lists; the map has ",
                     schedule.map.ranks(), " ranks"));
  }
  TESSERA_RETURN_IF_ERROR(CheckActions(schedule));
  return schedule;
}

std::string QuotedJson(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

void AppendRank(const std::vector<Action>& actions, std::string& text) {
  absl::StrAppend(&text, "    [");
  for (size_t at = 0; at < actions.size(); ++at) {
    if (at > 0) absl::StrAppend(&text, ", ");
    if (actions[at].with_next && at + 1 < actions.size()) {
      absl::StrAppend(
          &text, "\"(", actions[at].ToString(), ";", actions[at + 1].ToString(),
          Communicates(actions[at].kind) ? ")\"" : ")OVERLAP_F_B\"");
      ++at;
    } else {
      absl::StrAppend(&text, "\"", actions[at].ToString(), "\"");
    }
  }
  absl::StrAppend(&text, "]");
}

}  // namespace

std::string WriteJson(const Schedule& schedule) {
  std::vector<int32_t> rank_of;
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    rank_of.push_back(schedule.map.RankOf(stage));
  }
  std::string text = absl::StrCat(
      "{\n  \"schedule\": ", QuotedJson(schedule.name),
      ",\n  \"stages\": ", schedule.map.stages(),
      ",\n  \"microbatches\": ", schedule.microbatches,
      ",\n  \"map\": {\"ranks\": [", absl::StrJoin(rank_of, ", "),
      "], \"two_way\": ", schedule.map.two_way() ? "true" : "false",
      "},\n  \"ranks\": [\n");
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (rank > 0) absl::StrAppend(&text, ",\n");
    AppendRank(schedule.ranks[rank], text);
  }
  absl::StrAppend(&text, "\n  ]\n}\n");
  return text;
}

absl::StatusOr<Schedule> ReadJson(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(
      const json document,
      ParseJson(text, {.max_bytes = kMostJsonBytes, .max_depth = 8}));
  return ScheduleOf(document);
}

}  // namespace tessera::pipeline
