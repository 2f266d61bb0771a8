// Recursive doubling and halving: in step k a rank trades with the one whose
// number differs in one bit, so log2 n steps do. Ranks past a power of two fold
// in first (Fold). Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005,
// sections 4.1 to 4.3.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_DOUBLING_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_DOUBLING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/reducer.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// Recursive doubling: the whole vector in every step. Fewest steps; all ranks
// compute the same bits, for each combines the lower ranks' part with the
// higher ranks' part.
absl::Status DoublingAllReduce(Party party, int64_t count,
                               ConstVectorView input, VectorView output,
                               const Reducer& reducer, int64_t chunk);

// Block party.rank() of `all` is there; the others arrive.
absl::Status DoublingAllGather(Party party, const Blocks& blocks,
                               VectorView all);

// Recursive halving: half of what is left in every step.
absl::Status HalvingReduceScatter(Party party, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Reducer& reducer, int64_t chunk);

// Rabenseifner's: halving, then doubling (all-reduce) or a binomial gather to
// number 0 (reduce, whose `output` only number 0 has).
absl::Status HalvingDoublingAllReduce(Party party, int64_t count,
                                      ConstVectorView input, VectorView output,
                                      const Reducer& reducer, int64_t chunk);
absl::Status HalvingReduce(Party party, int64_t count, ConstVectorView input,
                           VectorView output, const Reducer& reducer,
                           int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_DOUBLING_H_
