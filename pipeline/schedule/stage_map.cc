#include "pipeline/schedule/stage_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
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
    return absl::InvalidArgumentError("no stage is left: all have 0 parts");
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
