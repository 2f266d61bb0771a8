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

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// FailedPrecondition where the schedule cannot be completed: names the rank,
// the position, the action and what it waits for.
absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const Costs& costs);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_SIMULATE_H_
