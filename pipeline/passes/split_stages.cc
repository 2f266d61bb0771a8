#include "pipeline/passes/split_stages.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"

namespace tessera::pipeline {

namespace {

absl::Status CheckComputes(const Schedule& schedule, size_t rank) {
  const std::vector<Action>& actions = schedule.ranks[rank];
  for (size_t at = 0; at < actions.size(); ++at) {
    const ActionPosition place{static_cast<int32_t>(rank),
                               static_cast<int32_t>(at)};
    if (actions[at].stage < 0 || actions[at].stage >= schedule.map.stages()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(schedule, place), ": the schedule has stages ",
                       "0 to ", schedule.map.stages() - 1));
    }
    if (Computes(actions[at].kind)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(schedule, place),
        ": only a schedule of computations can be split; split it before "
        "parameters and messages are added"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Schedule> SplitStages(const Schedule& schedule,
                                     std::span<const int64_t> parts) {
  Schedule split;
  split.name = schedule.name;
  split.microbatches = schedule.microbatches;
  TESSERA_ASSIGN_OR_RETURN(split.map, schedule.map.Split(parts));
  std::vector<int32_t> first = {0};
  for (const int64_t count : parts) {
    first.push_back(first.back() + static_cast<int32_t>(count));
  }
  const auto parts_of = [&](const Action& whole) {
    const auto stage = static_cast<size_t>(whole.stage);
    std::vector<Action> list;
    for (int32_t part = first[stage]; part < first[stage + 1]; ++part) {
      list.push_back({whole.kind, part, whole.microbatch});
    }
    if (whole.kind != ActionKind::kForward) {
      std::reverse(list.begin(), list.end());
    }
    return list;
  };
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    TESSERA_RETURN_IF_ERROR(CheckComputes(schedule, rank));
    TESSERA_ASSIGN_OR_RETURN(const auto units, UnitsOf(schedule, rank));
    std::vector<Action>& list = split.ranks.emplace_back();
    for (const auto unit : units) {
      std::vector<Action> one = parts_of(unit[0]);
      std::vector<Action> other;
      if (unit.size() == 2) other = parts_of(unit[1]);
      for (size_t i = 0; i < std::max(one.size(), other.size()); ++i) {
        if (i < one.size()) {
          one[i].with_next = i < other.size();
          list.push_back(one[i]);
        }
        if (i < other.size()) list.push_back(other[i]);
      }
    }
  }
  return split;
}

}  // namespace tessera::pipeline
