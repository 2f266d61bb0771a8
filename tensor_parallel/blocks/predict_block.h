// PredictBlock: the memory that a transformer block needs for a micro-batch.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const BlockMemory memory,
//       PredictBlock({.attention = {.width = 4096, .heads = 32,
//                                   .kv_heads = 8, .head_size = 128},
//                     .hidden = 14336,
//                     .recompute = Recompute::kSelective},
//                    {.length = 8192, .tensor_ranks = 8}));
//   memory.held;     // Bytes for each micro-batch in flight.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_PREDICT_BLOCK_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_PREDICT_BLOCK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/context/context_attention.h"

namespace tessera::tensor_parallel {

// A micro-batch, and the rank that computes a block with it.
struct BlockPlace {
  int64_t sequences = 1;
  int64_t length = 0;  // Tokens of a sequence, over all context ranks.
  int64_t tensor_ranks = 1;
  int64_t tensor_rank = 0;
  bool sequence_parallel = false;
  int64_t overlap_chunks = 0;  // TensorGroup::WithOverlapChunks.
  int64_t context_ranks = 1;
  int64_t context_rank = 0;
  bool zigzag = true;  // The layout of positions; otherwise contiguous.
  ContextAlgorithm algorithm = ContextAlgorithm::kRing;
};

// Bytes on one rank.
struct BlockMemory {
  // BlockActivations::bytes() between the forward and the backward: what each
  // block holds for each micro-batch in flight.
  int64_t held = 0;
  // The maximum of the pool during both passes (TensorPool::peak_bytes), which
  // blocks that are executed one after the other share, except for `held`.
  int64_t pool_peak = 0;
  // Working memory outside of the pool, which blocks of a group share.
  int64_t working = 0;
  // Weights and gradients of the block on this rank.
  int64_t parameters = 0;
};

// Creates the block and runs a forward and a backward with memory, messages and
// arithmetic that are only counted; no other rank exists. The tensors x, y and
// their gradients are not counted, except for a copy of x if the block keeps
// one. A mixture of experts has all experts on this rank. InvalidArgument as
// TransformerBlock::Create and Forward, for a micro-batch without tokens, and
// if there are no such ranks.
absl::StatusOr<BlockMemory> PredictBlock(const TransformerBlockOptions& options,
                                         const BlockPlace& place);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_PREDICT_BLOCK_H_
