// Reductions and broadcasts along one or two trees, pipelined in chunks: the
// double binary tree, the binomial tree and the chain are different places in
// the same machine.
//
// Messages move in a wavefront. Chunk k is combined at depth d at time
// k + H - d (H: the height) and passed down at time k + H + d (k + d in a
// broadcast alone), so every message is sent one unit before it is taken, both
// trees and both directions keep the same order on a shared channel, and no
// rank ever waits for a later time: it cannot deadlock, and the pipe is full.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_TREES_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_TREES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/reducer.h"
#include "collectives/algorithms/tree_kind.h"
#include "collectives/algorithms/vector_view.h"

namespace tessera::collectives {

// What moves. Chunks of `chunk` elements.
struct TreeTask {
  TreeKind kind = TreeKind::kBinomial;
  int64_t count = 0;
  int64_t chunk = 1;
  ConstVectorView input;  // Where a reduction, or at the root a broadcast,
                          // reads; may be the output.
  VectorView output;
  Reducer reducer;
};

// The root is number 0 of the party (see Party::From).
absl::Status TreeBroadcast(Party party, const TreeTask& task);
// Only the root has an output.
absl::Status TreeReduce(Party party, const TreeTask& task);
// The root, or the two of them, is of the algorithm's choosing.
absl::Status TreeAllReduce(Party party, const TreeTask& task);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_TREES_H_
