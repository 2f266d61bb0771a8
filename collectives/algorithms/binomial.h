// Gather and scatter along the binomial tree: CeilLog2(n) steps; every block
// moves once for each level that it passes.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_BINOMIAL_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_BINOMIAL_H_

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// Blocks of all ranks of `group`, in its order, to or from its number `root`.
// `all` is the root's; `own`, this rank's, may be its block. Ranks within the
// tree take scratch of the size of their subtree's blocks.
absl::Status BinomialGather(const Party& group, int64_t root,
                            const Blocks& blocks, ConstVectorView own,
                            VectorView all);
absl::Status BinomialScatter(const Party& group, int64_t root,
                             const Blocks& blocks, ConstVectorView all,
                             VectorView own);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_BINOMIAL_H_
