// Recursive doubling and halving: in step k a rank exchanges data with the rank
// whose number differs in one bit, so log2 n steps suffice. If n is not a power
// of two, surplus ranks fold in first (Fold in schedule.h). Source: Thakur,
// Rabenseifner, Gropp, IJHPCA 19(1), 2005, sections 4.1 to 4.3.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_DOUBLING_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_DOUBLING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

// Recursive doubling: exchanges the whole vector in every step, in the fewest
// steps. All ranks compute the same bits, because each combines the lower
// ranks' part with the higher ranks' part in this order.
absl::Status DoublingAllReduce(RankGroup group, int64_t count,
                               ConstVectorView input, VectorView output,
                               const Reducer& reducer, int64_t chunk);

// `all` holds block group.rank() on entry and all blocks on return.
absl::Status DoublingAllGather(RankGroup group, const Blocks& blocks,
                               VectorView all);

// Recursive halving: exchanges half of the remaining data in every step.
absl::Status HalvingReduceScatter(RankGroup group, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Reducer& reducer, int64_t chunk);

// Rabenseifner's algorithm: halving, then doubling (all-reduce) or a binomial
// gather to rank 0 (reduce; only rank 0 needs `output`).
absl::Status HalvingDoublingAllReduce(RankGroup group, int64_t count,
                                      ConstVectorView input, VectorView output,
                                      const Reducer& reducer, int64_t chunk);
absl::Status HalvingReduce(RankGroup group, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer, int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_DOUBLING_H_
