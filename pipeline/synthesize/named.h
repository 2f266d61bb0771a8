// The schedules that the generators offer for a problem.
//
//   for (const Named& named : NamedSchedules(problem)) ...
#ifndef TESSERA_PIPELINE_SYNTHESIZE_NAMED_H_
#define TESSERA_PIPELINE_SYNTHESIZE_NAMED_H_

#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"
#include "pipeline/synthesize/problem.h"

namespace tessera::pipeline::synthesis {

struct Named {
  std::string_view name;
  Schedule schedule;
  Timeline timeline;
  bool fits = false;  // The memory limit.
};

// The schedule of every generator that supports the problem's ranks, chunks and
// micro-batches, on the problem's map if it has one, in the order of the
// generators. Precondition: the problem is valid.
std::vector<Named> NamedSchedules(const SynthesisProblem& problem);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_NAMED_H_
