#include "pipeline/schedule/schedule_text.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

namespace {

constexpr int64_t kMostActions = int64_t{16} << 20;

void AppendCell(const std::vector<Action>& actions, size_t* at,
                std::string* line) {
  const Action& action = actions[*at];
  if (!line->empty()) line->push_back(',');
  if (action.with_next && *at + 1 < actions.size()) {
    ++*at;
    absl::StrAppend(line, "(", action.ToString(), ";", actions[*at].ToString(),
                    Communicates(action.kind) ? ")" : ")OVERLAP_F_B");
  } else {
    absl::StrAppend(line, action.ToString());
  }
  ++*at;
}

absl::StatusOr<std::vector<Action>> ReadLine(std::string_view line,
                                             size_t number) {
  std::vector<Action> actions;
  size_t column = 0;
  for (std::string_view cell : absl::StrSplit(line, ',')) {
    ++column;
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<Action> parsed, ParseCell(cell),
        Annotate(_, absl::StrCat("line ", number, ", cell ", column)));
    actions.insert(actions.end(), parsed.begin(), parsed.end());
  }
  return actions;
}

absl::StatusOr<std::vector<std::vector<Action>>> ReadLines(
    std::string_view text) {
  std::vector<std::vector<Action>> ranks;
  int64_t total = 0;
  size_t number = 0;
  for (std::string_view line :
       absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n')) {
    TESSERA_ASSIGN_OR_RETURN(ranks.emplace_back(), ReadLine(line, ++number));
    total += static_cast<int64_t>(ranks.back().size());
    if (total > kMostActions) {
      return absl::InvalidArgumentError(
          absl::StrCat("a schedule of more than ", kMostActions, " actions"));
    }
  }
  return ranks;
}

// The ranks that compute a stage, and the micro-batches of each.
struct Holders {
  struct Range {
    int32_t rank = -1;
    int32_t first = 0, last = 0;  // The least and largest micro-batch.
  };
  std::vector<Range> ranges;  // At most three; the third is an error.

  void Add(int32_t rank, int32_t microbatch) {
    for (Range& range : ranges) {
      if (range.rank != rank) continue;
      range.first = std::min(range.first, microbatch);
      range.last = std::max(range.last, microbatch);
      return;
    }
    if (ranges.size() < 3) ranges.push_back({rank, microbatch, microbatch});
  }
};

absl::Status WrongHolders(size_t stage, const Holders& holders) {
  if (holders.ranges.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", stage, " is computed by no rank"));
  }
  const auto& ranges = holders.ranges;
  const std::string who =
      ranges.size() == 1
          ? absl::StrCat("rank ", ranges[0].rank, " alone, in a two-way table")
          : absl::StrCat("ranks ", ranges[0].rank, " and ", ranges[1].rank);
  return absl::InvalidArgumentError(absl::StrCat(
      "stage ", stage, " is computed by ", who,
      "; one rank holds a stage, or ranks r and p - 1 - r hold it for the "
      "first and the second half of the micro-batches"));
}

// The map by the first micro-batch of each stage.
absl::StatusOr<StageMap> MapOf(std::vector<Holders>& all, size_t ranks) {
  std::vector<int32_t> rank_of;
  bool two_way = false;
  for (size_t stage = 0; stage < all.size(); ++stage) {
    std::vector<Holders::Range>& ranges = all[stage].ranges;
    if (ranges.empty() || ranges.size() > 2) {
      return WrongHolders(stage, all[stage]);
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    if (ranges.size() == 2 && ranges[0].last >= ranges[1].first) {
      return WrongHolders(stage, all[stage]);
    }
    two_way = two_way || ranges.size() == 2;
    rank_of.push_back(ranges[0].rank);
  }
  if (!two_way) return StageMap::Of(std::move(rank_of));
  for (size_t stage = 0; stage < all.size(); ++stage) {
    const auto& ranges = all[stage].ranges;
    const auto twin = static_cast<int32_t>(ranks) - 1 - ranges[0].rank;
    if (ranges.back().rank != twin) return WrongHolders(stage, all[stage]);
  }
  return StageMap::TwoWayOf(std::move(rank_of));
}

absl::Status CheckEveryRankComputes(const Schedule& schedule) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    const bool computes =
        std::any_of(actions.begin(), actions.end(),
                    [](const Action& a) { return Computes(a.kind); });
    if (computes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("line ", rank + 1, " computes nothing"));
  }
  return absl::OkStatus();
}

// Two-way tables must divide the micro-batches as Schedule does.
absl::Status CheckRanks(const Schedule& schedule) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (!Computes(action.kind)) continue;
      const int32_t holder = schedule.RankOf(action.stage, action.microbatch);
      if (holder == static_cast<int32_t>(rank)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("line ", rank + 1, ": ", action.ToString(),
                       " belongs to rank ", holder));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string WriteCsv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::string line;
    for (size_t at = 0; at < actions.size();) AppendCell(actions, &at, &line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

absl::StatusOr<Schedule> ReadCsv(std::string_view text, std::string_view name) {
  Schedule schedule;
  schedule.name = std::string(name);
  TESSERA_ASSIGN_OR_RETURN(schedule.ranks, ReadLines(text));
  int32_t last_stage = -1;
  int32_t last_microbatch = -1;
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      last_stage = std::max(last_stage, action.stage);
      last_microbatch = std::max(last_microbatch, action.microbatch);
    }
  }
  if (last_stage < 0 || last_stage >= StageMap::kMostStages) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", last_stage + 1, " stages; 1 to ",
                     StageMap::kMostStages, " are allowed"));
  }
  std::vector<Holders> holders(static_cast<size_t>(last_stage) + 1);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (!Computes(action.kind)) continue;
      holders[static_cast<size_t>(action.stage)].Add(static_cast<int32_t>(rank),
                                                     action.microbatch);
    }
  }
  TESSERA_RETURN_IF_ERROR(CheckEveryRankComputes(schedule));
  TESSERA_ASSIGN_OR_RETURN(schedule.map, MapOf(holders, schedule.ranks.size()));
  schedule.microbatches = last_microbatch + 1;
  TESSERA_RETURN_IF_ERROR(CheckRanks(schedule));
  return schedule;
}

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
      "{\n  \"schedule\": ", DumpJson(json(schedule.name)),
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
