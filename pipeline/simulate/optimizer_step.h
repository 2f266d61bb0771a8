// The optimizer's step, after everything else.
#ifndef TESSERA_PIPELINE_SIMULATE_OPTIMIZER_STEP_H_
#define TESSERA_PIPELINE_SIMULATE_OPTIMIZER_STEP_H_

#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// Appends the step of each rank for all stages that it holds, from `ready`, by
// rank, or once all ranks are.
void StepOptimizer(const Schedule& schedule, const Costs& costs,
                   const std::vector<double>& ready, Timeline& timeline);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_OPTIMIZER_STEP_H_
