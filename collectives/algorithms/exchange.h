// All-to-all, all-gather, gather and scatter in few steps (Bruck) or directly
// (pairwise), and the barrier.
//
// Bruck's algorithms take CeilLog2(n) steps for any n and suit small messages.
// Source: Bruck et al., IEEE TPDS 8(11), 1997.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_EXCHANGE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_EXCHANGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

// `all` holds block group.rank() on entry and all blocks on return. Uses
// scratch memory of the size of all blocks and copies them once.
absl::Status BruckAllGather(RankGroup group, const Blocks& blocks,
                            VectorView all);

// Blocks of `count` elements, one from and for each rank. `output` may be
// `input`. Uses scratch memory of twice the message.
absl::Status BruckAllToAll(RankGroup group, int64_t count,
                           ConstVectorView input, VectorView output);

// Dissemination: CeilLog2(n) steps of empty messages.
absl::Status DisseminationBarrier(RankGroup group);

// The functions below exchange directly: every rank exchanges messages with
// every other rank. The best case takes one message latency, and no byte moves
// twice.

// Block r of `input` goes to rank r; block r of `output` comes from rank r. The
// buffers must not overlap. In step s a rank sends to rank + s and receives
// from rank - s; a few steps run concurrently.
absl::Status PairwiseAllToAll(RankGroup group, const Blocks& in_blocks,
                              ConstVectorView input, const Blocks& out_blocks,
                              VectorView output);

// `all` holds block group.rank() on entry and all blocks on return. Has the
// same steps as PairwiseAllToAll.
absl::Status PairwiseAllGather(RankGroup group, const Blocks& blocks,
                               VectorView all);

// Every rank exchanges its block directly with rank `root`. `all` is used on
// the root only; `own` is this rank's block and may be the same memory as its
// block in `all`.
absl::Status LinearGather(RankGroup group, int64_t root, const Blocks& blocks,
                          ConstVectorView own, VectorView all);
absl::Status LinearScatter(RankGroup group, int64_t root, const Blocks& blocks,
                           ConstVectorView all, VectorView own);

// A reduction that folds the inputs from left to right in rank order: every
// rank sends each block of its input to the block's owner, which combines all
// contributions at once. Each rank sends (n-1)/n of the message, like a ring;
// the result equals Combine(combination, inputs of ranks 0..n-1) bit by bit.
// Chunks of at most `chunk` elements. `own` may be this rank's block of
// `input`. Applied to partial results this is the pairwise reduce-scatter of
// any reduction.
absl::Status OrderedReduceScatter(RankGroup group, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Combination& combination,
                                  int64_t chunk);

// Bytes of scratch memory for received contributions to a block of `block`
// elements of `element` bytes each; a few MiB at most.
int64_t OrderedLandingBytes(int64_t ranks, int64_t block, int64_t element,
                            int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_EXCHANGE_H_
