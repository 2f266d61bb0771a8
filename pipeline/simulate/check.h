// What Simulate refuses before it begins.
#ifndef TESSERA_PIPELINE_SIMULATE_CHECK_H_
#define TESSERA_PIPELINE_SIMULATE_CHECK_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline {

// What there is besides computations.
struct Contents {
  bool messages = false;    // Sends or receives: the schedule is lowered.
  bool parameters = false;  // UNSHARD, RESHARD or REDUCE_GRAD.
};

// InvalidArgument where the costs are wrong or not for the schedule, an action
// is of a stage or micro-batch that there is not or is not its rank's, a
// message joins no two ranks, or bytes could add up to more than 2^62.
absl::StatusOr<Contents> CheckInputs(const Schedule& schedule,
                                     const Costs& costs);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_CHECK_H_
