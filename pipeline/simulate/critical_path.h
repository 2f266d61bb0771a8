// CriticalPath: the chain of actions that decides how long a step takes.
//
//   TESSERA_ASSIGN_OR_RETURN(const Path path, CriticalPath(schedule,
//   timeline)); for (const PathStep& step : path.steps) ...   // From 0 to the
//   makespan. path.SumOf(ActionKind::kForward); path.waits; // 0 of a simulated
//   timeline.
//
// Each step ends where the next begins, so that they add up to the makespan.
// What is not on the path may become faster without any effect; what is on it
// may not become slower without one. Where several chains are as long, this is
// one of them: it stays on a rank as long as it can.
#ifndef TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_
#define TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/path.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

struct CriticalPathOptions {
  // As in Costs: whether computations wait for the rank's own messages.
  bool overlap_communication = true;
};

// `timeline` is of `schedule`, with traces (SimulateOptions). Linear in the
// number of actions. InvalidArgument where its computations, or in a lowered
// schedule its messages, are not those of the schedule.
absl::StatusOr<Path> CriticalPath(const Schedule& schedule,
                                  const Timeline& timeline,
                                  const CriticalPathOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_
