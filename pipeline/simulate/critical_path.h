// CriticalPath: the computations that determine the makespan of a timeline.
//
//   for (const TimedAction& one : CriticalPath(schedule, timeline)) {
//     std::cout << one.action << " at " << one.begin << "\n";
//   }
#ifndef TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_
#define TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_

#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// Goes back from the computation that ends last, each time to the later one of
// those that a computation waited for, on its own rank and for its input. The
// time between two of them is that of messages. If these take no time and
// overlap, each begins when the previous one ends, the first at 0. `timeline`
// must be of `schedule`, predicted or measured.
std::vector<TimedAction> CriticalPath(const Schedule& schedule,
                                      const Timeline& timeline);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_
