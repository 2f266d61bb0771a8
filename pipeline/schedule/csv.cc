#include "pipeline/schedule/csv.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

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

// Which ranks compute a stage, and for which micro-batches.
struct Holders {
  struct Range {
    int32_t rank = -1;
    int32_t first = 0, last = 0;  // The least and largest micro-batch.
  };
  std::vector<Range> ranges;  // At most three: a third is an error already.

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

// Two-way tables part the micro-batches where Schedule does.
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

}  // namespace tessera::pipeline
