// Ring algorithms: every rank receives from its left neighbour and sends to its
// right one, in chunks, so that combining overlaps with receiving.
//
// Bytes that each rank sends, of S on n ranks: (n-1)/n S for a reduce-scatter
// or an all-gather, twice that for an all-reduce: the least possible. Steps:
// n - 1 and 2 (n - 1). Source: Patarasuk, Yuan, JPDC 69(2), 2009.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_RING_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_RING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/reducer.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// `own` receives the sum of everybody's block party.rank() of `input`; it may
// be that block. Chunks of `chunk` elements.
absl::Status RingReduceScatter(Party party, const Blocks& blocks,
                               ConstVectorView input, VectorView own,
                               const Reducer& reducer, int64_t chunk);

// Block party.rank() of `all` is there; the others arrive.
absl::Status RingAllGather(Party party, const Blocks& blocks, VectorView all,
                           int64_t chunk);

// `output` may be `input`.
absl::Status RingAllReduce(Party party, int64_t count, ConstVectorView input,
                           VectorView output, const Reducer& reducer,
                           int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_RING_H_
