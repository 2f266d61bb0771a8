// AlgorithmOptions: what RunAlgorithm can be told.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_OPTIONS_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_OPTIONS_H_

#include <cstdint>

#include "collectives/algorithms/hierarchy.h"

namespace tessera::collectives {

// Long enough that a message's latency is small beside its transfer, short
// enough that a few of them stay in a second-level cache.
inline constexpr int64_t kDefaultChunkBytes = 256 << 10;

// The same on all ranks.
struct AlgorithmOptions {
  // For hierarchical algorithms; null: all ranks are equally near. Has as many
  // ranks as the group and outlives the operation.
  const Hierarchy* hierarchy = nullptr;

  // Messages longer than this move in pieces, so that combining and passing on
  // overlap with receiving. At least 1.
  int64_t chunk_bytes = kDefaultChunkBytes;

  // Every reduction is the left fold over the ranks' inputs in the order of
  // ranks, rounded once: the same bits whatever the algorithm, the size and the
  // chunks, those of Combine(Combination::Whole(...), inputs).
  bool reproducible = false;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_OPTIONS_H_
