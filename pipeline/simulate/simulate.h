// Simulate: when every action of a schedule begins and ends, and what memory it
// takes.
//
//   TESSERA_ASSIGN_OR_RETURN(const Timeline timeline,
//                            Simulate(schedule, costs));
//   timeline.makespan;
//   timeline.BubbleRate(0);      // of rank 0
//
// Each rank does its computations in their order, each as soon as what it needs
// is there; communication runs beside computation. Forward needs the stage
// before, backward needs the stage after and its own forward, the gradient of
// the weights needs that of the input. Sends and receives of a lowered schedule
// only order what is around them in this model: their time is in the costs.
#ifndef TESSERA_PIPELINE_SIMULATE_SIMULATE_H_
#define TESSERA_PIPELINE_SIMULATE_SIMULATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline {

struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

struct RankTimeline {
  std::vector<TimedAction> computations;  // In their order.
  double busy = 0;                        // The sum of their times.
  int64_t peak_bytes = 0;
  // Micro-batches of which the rank's stages hold something, counted by stage:
  // from the forward's begin to the end of the last backward.
  int64_t peak_activations = 0;

  double first() const {
    return computations.empty() ? 0 : computations.front().begin;
  }
  double last() const {
    return computations.empty() ? 0 : computations.back().end;
  }
};

struct Timeline {
  std::vector<RankTimeline> ranks;
  double makespan = 0;  // From 0 to the end of the last action.
  // From the first begin to the last end of the rank for which that is longest:
  // what a step takes where the next one's warm-up fills this one's cool-down
  // (arXiv 2401.10241, section 5.3).
  double longest_stage = 0;

  // The share of longest_stage in which the rank computes nothing.
  double BubbleRate(int32_t rank) const;
  // Of the rank that computes most.
  double BubbleRate() const;
};

// FailedPrecondition where the schedule cannot be completed: names the rank,
// the position, the action and what it waits for.
absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const Costs& costs);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_SIMULATE_H_
