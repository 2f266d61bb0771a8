// Reductions as left folds over the ranks' inputs in the order of ranks.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_ORDERED_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_ORDERED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

// Every rank sends each block of its input to the rank that the block belongs
// to, and combines what it gets, all contributions at once: (n-1)/n of the
// message, as a ring; the bits of Combine(combination, inputs of ranks
// 0..n-1). Chunks of at most `chunk` elements. `own` may be this rank's block
// of `input`. With partial results in place of inputs this is the pairwise
// reduce-scatter of any reduction.
absl::Status OrderedReduceScatter(Party party, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Combination& combination,
                                  int64_t chunk);

// Bytes of scratch in which a rank whose block has so many elements, of
// `element` bytes each, holds what the others send it; a few MiB at most.
int64_t OrderedLandingBytes(int64_t ranks, int64_t block, int64_t element,
                            int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_ORDERED_H_
