#include "pipeline/simulate/critical_path.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "pipeline/proof/action_position.h"

namespace tessera::pipeline {

std::vector<TimedAction> CriticalPath(const Schedule& schedule,
                                      const Timeline& timeline) {
  // By direction, stage and micro-batch: what the next stage waits for.
  std::map<std::tuple<PassDirection, int32_t, int32_t>, const TimedAction*>
      producers;
  std::map<const TimedAction*, const TimedAction*> before;  // On its rank.
  const TimedAction* at = nullptr;
  for (const RankTimeline& rank : timeline.ranks) {
    const TimedAction* previous = nullptr;
    for (const TimedAction& timed : rank.computations) {
      const Action& action = timed.action;
      if (action.kind != ActionKind::kBackwardWeight) {
        producers[{DirectionOf(action.kind), action.stage, action.microbatch}] =
            &timed;
      }
      before[&timed] = std::exchange(previous, &timed);
      if (at == nullptr || timed.end > at->end) at = &timed;
    }
  }
  std::vector<TimedAction> path;
  while (at != nullptr) {
    path.push_back(*at);
    const Action& action = at->action;
    const PassDirection direction = DirectionOf(action.kind);
    const auto input =
        producers.find({direction, SourceOf(schedule, direction, action.stage),
                        action.microbatch});
    at = before.at(at);
    if (action.kind != ActionKind::kBackwardWeight &&
        input != producers.end() &&
        (at == nullptr || input->second->end > at->end)) {
      at = input->second;
    }
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace tessera::pipeline
