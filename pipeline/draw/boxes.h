// Boxes: a rank's actions as they are drawn, each by itself or, where too
// narrow to see, as runs.
//
//   for (const Box& box : BoxesOf(rank.computations, /*least=*/0.5)) ...
#ifndef TESSERA_PIPELINE_DRAW_BOXES_H_
#define TESSERA_PIPELINE_DRAW_BOXES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

struct Box {
  double begin = 0;
  double end = 0;
  size_t first = 0;  // Its actions: `count` of them, from `first` on.
  size_t count = 1;
};

// Every action is in one box, in the actions' order, which is that of their
// begins. An action that lasts `least` or longer has its own; shorter ones
// share one until it is that long, unless a pause as long comes between. So
// there are at most 2 extent / least + 2 boxes of actions that do not overlap.
std::vector<Box> BoxesOf(std::span<const TimedAction> actions, double least);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_BOXES_H_
