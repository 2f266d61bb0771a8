// Lanes: actions that overlap in time, side by side.
//
//   LanesOf(rank.communications);    // {0, 1, 0}: the second beside the first
#ifndef TESSERA_PIPELINE_DRAW_LANES_H_
#define TESSERA_PIPELINE_DRAW_LANES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// For each action, which are in the order of their begins, the first lane that
// is free then: actions of a lane never overlap, and there are as many lanes as
// actions run at once, and no more.
std::vector<size_t> LanesOf(std::span<const TimedAction> actions);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_LANES_H_
