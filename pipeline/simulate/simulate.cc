#include "pipeline/simulate/simulate.h"

#include <utility>

#include "base/status_macros.h"
#include "pipeline/simulate/simulation.h"

namespace tessera::pipeline {

absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const Costs& costs,
                                  const SimulateOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Contents contents,
                           CheckInputs(schedule, costs));
  Simulation simulation(schedule, costs, contents, options.traces);
  TESSERA_RETURN_IF_ERROR(simulation.Run());
  return std::move(simulation).TakeTimeline();
}

}  // namespace tessera::pipeline
