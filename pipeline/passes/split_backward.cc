#include "pipeline/passes/split_backward.h"

#include <span>
#include <vector>

#include "base/status_macros.h"
#include "pipeline/passes/units.h"

namespace tessera::pipeline {
namespace {

using Units = std::vector<std::span<const Action>>;

std::vector<Action> Split(const Units& units) {
  std::vector<Action> list;
  for (const auto unit : units) {
    std::vector<Action> weights;
    for (Action action : unit) {
      if (action.kind == ActionKind::kBackward) {
        action.kind = ActionKind::kBackwardInput;
        weights.push_back(
            {ActionKind::kBackwardWeight, action.stage, action.microbatch});
      }
      list.push_back(action);
    }
    list.insert(list.end(), weights.begin(), weights.end());
  }
  return list;
}

// Whether `unit` is the W of `action`.
bool IsWeightOf(const Action& action, std::span<const Action> unit) {
  return action.kind == ActionKind::kBackwardInput && unit.size() == 1 &&
         unit[0] == Action{ActionKind::kBackwardWeight, action.stage,
                           action.microbatch};
}

std::vector<Action> Merge(const Units& units) {
  std::vector<Action> list;
  for (size_t i = 0; i < units.size(); ++i) {
    bool merged = false;
    for (Action action : units[i]) {
      if (i + 1 < units.size() && IsWeightOf(action, units[i + 1])) {
        action.kind = ActionKind::kBackward;
        merged = true;
      }
      list.push_back(action);
    }
    if (merged) ++i;
  }
  return list;
}

absl::StatusOr<Schedule> Rewrite(const Schedule& schedule,
                                 std::vector<Action> (*rewrite)(const Units&)) {
  Schedule rewritten = schedule;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const Units units, UnitsOf(schedule, rank));
    rewritten.ranks[rank] = rewrite(units);
  }
  return rewritten;
}

}  // namespace

absl::StatusOr<Schedule> SplitBackward(const Schedule& schedule) {
  return Rewrite(schedule, Split);
}

absl::StatusOr<Schedule> MergeBackward(const Schedule& schedule) {
  return Rewrite(schedule, Merge);
}

}  // namespace tessera::pipeline
