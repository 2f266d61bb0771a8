// How long a rank takes at least, of itself: items 1 to 4 of lower_bound.h.
//
//   const Spans spans = BoundOfOneWayRank(model, Ways(model), rank);
#ifndef TESSERA_PIPELINE_SYNTHESIZE_RANK_BOUND_H_
#define TESSERA_PIPELINE_SYNTHESIZE_RANK_BOUND_H_

#include <cstddef>

#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

// Lower bounds for a rank: the time from its first begin to its last end, and
// from its first forward (of a direction) to its last backward-input.
struct Spans {
  double to_weight = 0;
  double to_input = 0;
};

// The bound of a rank whose micro-batches all travel in one direction.
Spans BoundOfOneWayRank(const Model& model, const Ways& ways, size_t rank);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_RANK_BOUND_H_
