// What the generators have to offer for a problem.
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

// Of every generator that makes one for the problem's ranks, chunks and
// micro-batches, on its map if there is one, in their order. The problem was
// checked.
std::vector<Named> NamedSchedules(const SynthesisProblem& problem);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_NAMED_H_
