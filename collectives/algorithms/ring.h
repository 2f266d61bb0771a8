// Ring algorithms: every rank receives from its left and sends to its right
// neighbour, in chunks, so that reducing overlaps with receiving.
//
// For a message of S bytes on n ranks each rank sends (n-1)/n S in a
// reduce-scatter or all-gather (n - 1 steps) and twice that in an all-reduce (2
// (n - 1) steps), which is optimal. Source: Patarasuk, Yuan, JPDC 69(2), 2009.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_RING_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_RING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// `own` receives the reduction of block group.rank() of all inputs; it may
// alias that block of `input`. Chunks of `chunk` elements.
absl::Status RingReduceScatter(RankGroup group, const Blocks& blocks,
                               ConstVectorView input, VectorView own,
                               const Reducer& reducer, int64_t chunk);

// `all` holds block group.rank() on entry and all blocks on return.
absl::Status RingAllGather(RankGroup group, const Blocks& blocks,
                           VectorView all, int64_t chunk);

// `output` may be `input`.
absl::Status RingAllReduce(RankGroup group, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer, int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_RING_H_
