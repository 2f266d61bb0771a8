// The eight steps of DualPipe (arXiv 2412.19437, section 3.2.1), for one rank
// with two stages. DualPipe and DualPipeV have them in common.
//
//   ActionList list(m);
//   StageTurns near(list, stage), far(list, other);
//   DualPipeSteps({.depth = r, .most_depth = p - 1, .turns = m}, list, near,
//   far);
#ifndef TESSERA_PIPELINE_GENERATE_EIGHT_STEPS_H_
#define TESSERA_PIPELINE_GENERATE_EIGHT_STEPS_H_

#include <cstdint>

#include "pipeline/generate/draft.h"

namespace tessera::pipeline {

struct DualPipeRank {
  // How far from the rank at which micro-batches of `near` enter, and of the
  // rank where they turn round or meet those of the other direction.
  int64_t depth = 0;
  int64_t most_depth = 0;
  // Micro-batches in each of both stages; at least 2 (most_depth + 1).
  int64_t turns = 0;
};

// Adds the rank's actions. `near` is the stage whose micro-batches have come
// `depth` ranks, `far` the other one.
void DualPipeSteps(const DualPipeRank& rank, ActionList& list, StageTurns& near,
                   StageTurns& far);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_EIGHT_STEPS_H_
