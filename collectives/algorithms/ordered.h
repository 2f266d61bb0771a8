// Reductions that fold the inputs from left to right in rank order.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_ORDERED_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_ORDERED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

// Every rank sends each block of its input to the block's owner, which combines
// all contributions at once. Each rank sends (n-1)/n of the message, like a
// ring; the result equals Combine(combination, inputs of ranks 0..n-1) bit by
// bit. Chunks of at most `chunk` elements. `own` may be this rank's block of
// `input`. Applied to partial results this is the pairwise reduce-scatter of
// any reduction.
absl::Status OrderedReduceScatter(RankGroup group, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Combination& combination,
                                  int64_t chunk);

// Bytes of scratch memory for received contributions to a block of `block`
// elements of `element` bytes each; a few MiB at most.
int64_t OrderedLandingBytes(int64_t ranks, int64_t block, int64_t element,
                            int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_ORDERED_H_
