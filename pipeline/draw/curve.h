// Curve: what a rank holds over time, bytes or micro-batches.
//
//   const Curves curves = CurvesOf(timeline);
//   curves.ranks[0];     // steps: from each time on, so much
#ifndef TESSERA_PIPELINE_DRAW_CURVE_H_
#define TESSERA_PIPELINE_DRAW_CURVE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// From `time` on, until the next change.
using Curve = std::vector<MemoryChange>;

struct Curves {
  bool are_bytes = false;  // Else micro-batches.
  std::vector<Curve> ranks;
  int64_t peak = 0;  // Of all ranks; at least 0.
};

// The ranks' memory, of several changes at one time the last; or where none has
// any, the micro-batches that they hold: from a forward's begin to the end of
// its B or W.
Curves CurvesOf(const Timeline& timeline);

// A curve with the same most in every interval of `step` from 0 on, the same at
// its end, and at most three changes in it. `step` of 0 leaves it as it is.
Curve Thinned(const Curve& curve, double step);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_CURVE_H_
