// Direct exchanges: every rank talks to every other one. One message's latency
// in the best case, and no byte moves twice.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_PAIRWISE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_PAIRWISE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// Block r of `input` goes to rank r; blocks of `output` come from their ranks.
// They do not overlap. In step s a rank sends to rank + s and receives from
// rank - s; a few steps are under way together.
absl::Status PairwiseAllToAll(Party party, const Blocks& in_blocks,
                              ConstVectorView input, const Blocks& out_blocks,
                              VectorView output);

// Block party.rank() of `all` is there; it goes to every other rank in the
// same steps.
absl::Status PairwiseAllGather(Party party, const Blocks& blocks,
                               VectorView all);

// To or from number `root` directly. `all` is the root's; `own`, this rank's
// block, may be its place there.
absl::Status LinearGather(Party party, int64_t root, const Blocks& blocks,
                          ConstVectorView own, VectorView all);
absl::Status LinearScatter(Party party, int64_t root, const Blocks& blocks,
                           ConstVectorView all, VectorView own);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_PAIRWISE_H_
