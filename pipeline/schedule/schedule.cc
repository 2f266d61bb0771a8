#include "pipeline/schedule/schedule.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera::pipeline {

namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";

constexpr std::array<std::string_view, kActionKinds.size()> kNames = {
    "F",      "B",      "I",       "W",       "SEND_F",      "RECV_F",
    "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD",
};

absl::Status NotAnAction(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text.substr(0, 64), "\" is not an action of a schedule: ", why,
      "; such as 0F0, 1I3, 0SEND_F0 or 3UNSHARD"));
}

bool IsDigit(char c) { return absl::ascii_isdigit(c); }

// Parses an index up to kMostIndex, which must be the whole text.
bool ParseIndex(std::string_view digits, int32_t* index) {
  constexpr size_t kMostDigits = 8;
  return !digits.empty() && digits.size() <= kMostDigits &&
         std::all_of(digits.begin(), digits.end(), IsDigit) &&
         absl::SimpleAtoi(digits, index) && *index <= kMostIndex;
}

bool IsOverlap(const Action& first, const Action& second) {
  return first.kind == ActionKind::kForward && GivesInputGradient(second.kind);
}

bool IsExchange(const Action& first, const Action& second) {
  return (Sends(first.kind) && Receives(second.kind)) ||
         (Receives(first.kind) && Sends(second.kind));
}

absl::StatusOr<std::vector<Action>> ParsePair(std::string_view text) {
  std::string_view inner = text;
  const bool overlap = absl::ConsumeSuffix(&inner, kOverlap);
  if (!absl::ConsumePrefix(&inner, "(") || !absl::ConsumeSuffix(&inner, ")")) {
    return NotAnAction(text,
                       "a pair is (0F8;7B4)OVERLAP_F_B or (1SEND_F3;1RECV_B0)");
  }
  const std::vector<std::string_view> parts = absl::StrSplit(inner, ';');
  if (parts.size() != 2) return NotAnAction(text, "a pair has two actions");
  std::vector<Action> pair;
  for (std::string_view part : parts) {
    TESSERA_ASSIGN_OR_RETURN(pair.emplace_back(), ParseAction(part));
  }
  if (overlap && !IsOverlap(pair[0], pair[1])) {
    return NotAnAction(text, "a pair is a forward and a backward");
  }
  if (!overlap && !IsExchange(pair[0], pair[1])) {
    return NotAnAction(text,
                       "a pair without OVERLAP_F_B is a send and a receive");
  }
  pair[0].with_next = true;
  return pair;
}

}  // namespace

std::string_view ActionKindName(ActionKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "?";
}

std::string Action::ToString() const {
  return microbatch == kNoMicroBatch
             ? absl::StrCat(stage, ActionKindName(kind))
             : absl::StrCat(stage, ActionKindName(kind), microbatch);
}

std::ostream& operator<<(std::ostream& os, const Action& action) {
  return os << action.ToString();
}

absl::StatusOr<Action> ParseAction(std::string_view text) {
  const auto kind_at = std::find_if_not(text.begin(), text.end(), IsDigit);
  const auto number_at = std::find_if(kind_at, text.end(), IsDigit);
  const auto size_to = [&](auto at) {
    return static_cast<size_t>(at - text.begin());
  };
  const std::string_view stage = text.substr(0, size_to(kind_at));
  const std::string_view kind =
      text.substr(size_to(kind_at), static_cast<size_t>(number_at - kind_at));
  const std::string_view microbatch = text.substr(size_to(number_at));

  Action action;
  if (!ParseIndex(stage, &action.stage)) {
    return NotAnAction(text, "it must begin with the number of a stage");
  }
  const auto name = std::find(kNames.begin(), kNames.end(), kind);
  if (name == kNames.end()) return NotAnAction(text, "unknown kind");
  action.kind = kActionKinds[static_cast<size_t>(name - kNames.begin())];
  if (!HasMicroBatch(action.kind)) {
    if (microbatch.empty()) return action;
    return NotAnAction(text, "this kind has no micro-batch");
  }
  if (!ParseIndex(microbatch, &action.microbatch)) {
    return NotAnAction(text, "it must end with the number of a micro-batch");
  }
  return action;
}

absl::StatusOr<std::vector<Action>> ParseCell(std::string_view text) {
  const std::string_view cell = absl::StripAsciiWhitespace(text);
  if (cell.empty()) return std::vector<Action>();
  if (cell.front() == '(') return ParsePair(cell);
  TESSERA_ASSIGN_OR_RETURN(const Action action, ParseAction(cell));
  return std::vector<Action>{action};
}

namespace {

absl::Status CheckCounts(int64_t ranks, int64_t chunks) {
  if (ranks >= 1 && chunks >= 1 && ranks <= StageMap::kMostStages / chunks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a pipeline of ", ranks, " ranks with ", chunks,
                   " stages each; at least 1 of both, and at most ",
                   StageMap::kMostStages, " stages together, are allowed"));
}

}  // namespace

absl::StatusOr<StageMap> StageMap::Linear(int64_t ranks) {
  return Loop(ranks, 1);
}

absl::StatusOr<StageMap> StageMap::Loop(int64_t ranks, int64_t chunks) {
  TESSERA_RETURN_IF_ERROR(CheckCounts(ranks, chunks));
  std::vector<int32_t> rank_of;
  for (int64_t stage = 0; stage < ranks * chunks; ++stage) {
    rank_of.push_back(static_cast<int32_t>(stage % ranks));
  }
  return StageMap(std::move(rank_of), ranks, /*two_way=*/false);
}

absl::StatusOr<StageMap> StageMap::Zigzag(int64_t ranks, int64_t chunks) {
  TESSERA_RETURN_IF_ERROR(CheckCounts(ranks, chunks));
  std::vector<int32_t> rank_of;
  for (int64_t stage = 0; stage < ranks * chunks; ++stage) {
    const int64_t step = stage % ranks;
    const bool back = stage / ranks % 2 == 1;
    rank_of.push_back(static_cast<int32_t>(back ? ranks - 1 - step : step));
  }
  return StageMap(std::move(rank_of), ranks, /*two_way=*/false);
}

absl::StatusOr<StageMap> StageMap::TwoWay(int64_t ranks) {
  TESSERA_ASSIGN_OR_RETURN(StageMap map, Linear(ranks));
  map.two_way_ = true;
  return map;
}

absl::StatusOr<StageMap> StageMap::Of(std::vector<int32_t> rank_of_stage) {
  const auto stages = static_cast<int64_t>(rank_of_stage.size());
  TESSERA_RETURN_IF_ERROR(CheckCounts(stages, 1));
  const auto [least, most] =
      std::minmax_element(rank_of_stage.begin(), rank_of_stage.end());
  if (*least < 0 || *most >= stages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", *least < 0 ? *least : *most, " of a stage; ", stages,
        " stages have ranks 0 to ", stages - 1, " at most"));
  }
  std::vector<bool> has_stage(static_cast<size_t>(*most) + 1);
  for (const int32_t rank : rank_of_stage) {
    has_stage[static_cast<size_t>(rank)] = true;
  }
  const auto idle = std::find(has_stage.begin(), has_stage.end(), false);
  if (idle != has_stage.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", idle - has_stage.begin(), " of ",
                     has_stage.size(), " has no stage"));
  }
  const auto ranks = static_cast<int64_t>(has_stage.size());
  return StageMap(std::move(rank_of_stage), ranks, /*two_way=*/false);
}

absl::StatusOr<StageMap> StageMap::TwoWayOf(
    std::vector<int32_t> rank_of_stage) {
  TESSERA_ASSIGN_OR_RETURN(StageMap map, Of(std::move(rank_of_stage)));
  map.two_way_ = true;
  return map;
}

absl::StatusOr<StageMap> StageMap::Split(std::span<const int64_t> parts) const {
  if (static_cast<int64_t>(parts.size()) != stages()) {
    return absl::InvalidArgumentError(
        absl::StrCat("numbers of parts for ", parts.size(),
                     " stages; the map has ", stages()));
  }
  std::vector<int32_t> rank_of;
  for (size_t stage = 0; stage < parts.size(); ++stage) {
    const int64_t room = kMostStages - static_cast<int64_t>(rank_of.size());
    if (parts[stage] < 0 || parts[stage] > room) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stage ", stage, " in ", parts[stage], " parts; at least 0, and at ",
          "most ", kMostStages, " stages together, are allowed"));
    }
    rank_of.insert(rank_of.end(), static_cast<size_t>(parts[stage]),
                   rank_of_[stage]);
  }
  if (rank_of.empty()) {
    return absl::InvalidArgumentError(
        "all stages have 0 parts; at least one needs a part");
  }
  return StageMap(std::move(rank_of), ranks_, two_way_);
}

std::vector<int32_t> StageMap::StagesOf(int32_t rank) const {
  std::vector<int32_t> stages;
  for (int32_t stage = 0; stage < this->stages(); ++stage) {
    if (RankOf(stage) == rank || RankFromBack(stage) == rank) {
      stages.push_back(stage);
    }
  }
  return stages;
}

}  // namespace tessera::pipeline
