// Broadcast, reduce, all-reduce, gather and scatter along trees.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_TREES_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_TREES_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// Gather to and scatter from rank `root` of `group` along a binomial tree:
// CeilLog2(n) steps; a block moves once per level. `all` is used on the root
// only; `own` is this rank's block and may be the same memory as its block in
// `all`. Inner ranks use scratch memory of the size of their subtree's blocks.
absl::Status BinomialGather(const RankGroup& group, int64_t root,
                            const Blocks& blocks, ConstVectorView own,
                            VectorView all);
absl::Status BinomialScatter(const RankGroup& group, int64_t root,
                             const Blocks& blocks, ConstVectorView all,
                             VectorView own);

// A reduction or broadcast along one or two trees, pipelined in chunks of
// `chunk` elements. The double binary tree, the binomial tree and the chain
// differ only in each rank's TreePlace (schedule.h).
//
// Messages move in a wavefront. Chunk k is combined at depth d at time
// k + H - d (H: the height) and passed down at time k + H + d (k + d in a
// broadcast alone). Every message is sent one time unit before it is received,
// both trees and both directions use the same order on a shared channel, and no
// rank waits for a later time. Therefore the algorithm cannot deadlock, and the
// pipeline stays full.
struct TreeTask {
  TreeKind kind = TreeKind::kBinomial;
  int64_t count = 0;
  int64_t chunk = 1;
  ConstVectorView input;  // Source of a reduction, or of a broadcast at the
                          // root; may be the output.
  VectorView output;
  Reducer reducer;
};

// The root is rank 0 of `group` (see RankGroup::From).
absl::Status TreeBroadcast(RankGroup group, const TreeTask& task);
// Only the root needs an output.
absl::Status TreeReduce(RankGroup group, const TreeTask& task);
// The algorithm chooses the roots.
absl::Status TreeAllReduce(RankGroup group, const TreeTask& task);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_TREES_H_
