#include "pipeline/execute/execution_plan.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "pipeline/proof/action_position.h"

namespace tessera::pipeline {
namespace {

// Returns, for each action of a list, true if a pass without backwards keeps
// it.
std::vector<bool> KeptForward(const std::vector<Action>& actions) {
  std::vector<bool> kept(actions.size());
  std::map<int32_t, size_t> gathered;  // By stage, the position.
  std::map<int32_t, bool> used;        // By stage, since the gather.
  for (size_t at = 0; at < actions.size(); ++at) {
    const Action& action = actions[at];
    switch (action.kind) {
      case ActionKind::kForward:
        used[action.stage] = true;
        kept[at] = true;
        break;
      case ActionKind::kSendForward:
      case ActionKind::kReceiveForward:
        kept[at] = true;
        break;
      case ActionKind::kUnshard:
        gathered[action.stage] = at;
        used[action.stage] = false;
        break;
      case ActionKind::kReshard:
        kept[at] = kept[gathered[action.stage]] = used[action.stage];
        break;
      default:
        break;
    }
  }
  return kept;
}

}  // namespace

int32_t ExecutionPlan::LocalOf(int32_t stage) const {
  const auto at = std::lower_bound(stages_.begin(), stages_.end(), stage);
  return static_cast<int32_t>(at - stages_.begin());
}

PlannedAction ExecutionPlan::PlanOf(const Schedule& schedule,
                                    int32_t position) const {
  PlannedAction planned;
  const Action& action = ActionAt(schedule, {rank_, position});
  planned.action = action;
  planned.position = position;
  planned.local = LocalOf(action.stage);
  if (!HasMicroBatch(action.kind) ||
      action.kind == ActionKind::kBackwardWeight) {
    return planned;
  }
  const PassDirection direction = DirectionOf(action.kind);
  const int32_t other = Receives(action.kind)
                            ? SourceOf(schedule, direction, action.stage)
                            : TargetOf(schedule, direction, action.stage);
  if (other == kNoStage) return planned;
  planned.boundary = std::min(action.stage, other);
  const int32_t owner = schedule.RankOf(other, action.microbatch);
  if (Communicates(action.kind)) {
    planned.peer = owner;
  } else if (owner == rank_) {
    planned.hands_to = LocalOf(other);
  }
  return planned;
}

ExecutionPlan ExecutionPlan::Of(const Schedule& schedule, int32_t rank,
                                Passes passes) {
  ExecutionPlan plan;
  plan.rank_ = rank;
  plan.passes_ = passes;
  plan.stages_ = schedule.map.StagesOf(rank);
  plan.receives_.resize(static_cast<size_t>(schedule.map.ranks()));
  const std::vector<Action>& list = schedule.ranks[static_cast<size_t>(rank)];
  const std::vector<bool> kept = passes == Passes::kForward
                                     ? KeptForward(list)
                                     : std::vector<bool>(list.size(), true);
  for (size_t at = 0; at < list.size(); ++at) {
    if (!kept[at]) continue;
    PlannedAction planned = plan.PlanOf(schedule, static_cast<int32_t>(at));
    // A single remaining action of a pair is not a pair.
    planned.action.with_next =
        list[at].with_next && at + 1 < list.size() && kept[at + 1];
    if (Receives(planned.action.kind)) {
      plan.receives_[static_cast<size_t>(planned.peer)].push_back(
          plan.actions_.size());
    }
    plan.actions_.push_back(planned);
  }
  return plan;
}

std::string ExecutionPlan::Describe(const PlannedAction& planned) const {
  const Action& action = planned.action;
  std::string text =
      absl::StrCat("pipeline rank ", rank_, ", action ", planned.position, " (",
                   action.ToString(), "): stage ", action.stage);
  if (HasMicroBatch(action.kind)) {
    absl::StrAppend(&text, ", micro-batch ", action.microbatch);
  }
  if (planned.peer != kNobody) {
    absl::StrAppend(&text, Sends(action.kind) ? ", to rank " : ", from rank ",
                    planned.peer);
  }
  return text;
}

}  // namespace tessera::pipeline
