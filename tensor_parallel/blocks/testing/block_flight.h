// A small block and its micro-batches in flight, for tests.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_BLOCK_FLIGHT_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_BLOCK_FLIGHT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/testing/layer_case.h"

namespace tessera::tensor_parallel::block_flight {

inline constexpr int64_t kWidth = 12;
inline constexpr int64_t kHeads = 4;
inline constexpr int64_t kKvHeads = 2;
inline constexpr int64_t kHeadSize = 6;
inline constexpr int64_t kHidden = 20;
inline constexpr int64_t kLength = 16;
inline constexpr int64_t kSequences = 3;
inline constexpr int64_t kTokens = kSequences * kLength;

inline TransformerBlockOptions OptionsOf(DType dtype, Recompute recompute) {
  return {.attention = {.width = kWidth,
                        .heads = kHeads,
                        .kv_heads = kKvHeads,
                        .head_size = kHeadSize,
                        .dtype = dtype},
          .hidden = kHidden,
          .recompute = recompute};
}

inline absl::StatusOr<TransformerBlock> MakeBlock(
    const TensorGroup& group, const TransformerBlockOptions& options) {
  return TransformerBlock::Create(
      group,
      {TensorGroup(group.ops()), *SequenceLayout::Contiguous(kLength, 1)},
      options);
}

// A micro-batch in flight through a block.
struct Flight {
  Flight(TensorPool& pool, const TransformerBlockOptions& options,
         int64_t tokens, uint64_t stream)
      : x(*RandomTensor(options.attention.dtype, {{tokens, kWidth}}, stream)),
        y(*Tensor::Create(options.attention.dtype, {{tokens, kWidth}})),
        gradient(*RandomTensor(options.attention.dtype, {{tokens, kWidth}},
                               stream + 100)),
        activations(pool) {}

  absl::Status Forward(TransformerBlock& block) {
    return block.Forward(kSequences, x.view(), y.view(), activations);
  }
  // Overwrites `gradient`.
  absl::Status BackwardInput(TransformerBlock& block) {
    return block.BackwardInput(gradient.view(), gradient.view(), activations);
  }

  Tensor x, y, gradient;
  BlockActivations activations;
};

}  // namespace tessera::tensor_parallel::block_flight

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_BLOCK_FLIGHT_H_
