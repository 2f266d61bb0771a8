#include "pipeline/schedule/json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/json_document.h"

namespace tessera::pipeline {
namespace {

using nlohmann::json;

absl::StatusOr<StageMap> MapOf(JsonDocument& document) {
  const auto given = static_cast<int64_t>(document.rank_of.size());
  if (given != document.stages) {
    return absl::InvalidArgumentError(
        absl::StrCat("map.ranks has ", given, " entries for ", document.stages,
                     " stages; it has the rank of each"));
  }
  TESSERA_ASSIGN_OR_RETURN(StageMap map,
                           document.two_way
                               ? StageMap::TwoWayOf(std::move(document.rank_of))
                               : StageMap::Of(std::move(document.rank_of)),
                           Annotate(_, "map.ranks"));
  return map;
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

absl::StatusOr<Schedule> ScheduleOf(JsonDocument& document) {
  Schedule schedule;
  TESSERA_ASSIGN_OR_RETURN(schedule.map, MapOf(document));
  const auto given = static_cast<int64_t>(document.ranks.size());
  if (given != schedule.map.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks has ", given, " lists; the map has ",
                     schedule.map.ranks(), " ranks"));
  }
  schedule.name = std::move(document.name);
  schedule.microbatches = static_cast<int32_t>(document.microbatches);
  schedule.ranks = std::move(document.ranks);
  TESSERA_RETURN_IF_ERROR(CheckActions(schedule));
  return schedule;
}

std::string Quoted(std::string_view text) {
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
      "{\n  \"schedule\": ", Quoted(schedule.name),
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
  if (text.size() > kMostJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", text.size(), " bytes of JSON; at most ",
                     kMostJsonBytes, " are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(JsonDocument document, ParseJsonDocument(text));
  return ScheduleOf(document);
}

}  // namespace tessera::pipeline
