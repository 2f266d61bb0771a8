#include "pipeline/simulate/rank_memory.h"

#include <algorithm>
#include <cstdint>

namespace tessera::pipeline {

namespace {

std::vector<double> TimeOfRanks(const Schedule& schedule, const Costs& costs) {
  std::vector<double> times(schedule.ranks.size());
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    const double time = costs.stages[static_cast<size_t>(stage)].optimizer;
    const int32_t rank = schedule.map.RankOf(stage);
    const int32_t other = schedule.map.RankFromBack(stage);
    times[static_cast<size_t>(rank)] += time;
    if (other != rank) times[static_cast<size_t>(other)] += time;
  }
  return times;
}

}  // namespace

void StepOptimizer(const Schedule& schedule, const Costs& costs,
                   const std::vector<double>& ready, Timeline& timeline) {
  const bool steps =
      std::any_of(costs.stages.begin(), costs.stages.end(),
                  [](const StageCosts& cost) { return cost.optimizer > 0; });
  if (costs.synchronise_optimizer) {
    const double all = *std::max_element(ready.begin(), ready.end());
    timeline.synchronisation = {all, all + costs.synchronisation};
  }
  if (!steps) return;
  const std::vector<double> times = TimeOfRanks(schedule, costs);
  for (size_t rank = 0; rank < times.size(); ++rank) {
    const double begin = costs.synchronise_optimizer
                             ? timeline.synchronisation.end
                             : ready[rank];
    timeline.ranks[rank].optimizer = {begin, begin + times[rank]};
  }
}

}  // namespace tessera::pipeline
