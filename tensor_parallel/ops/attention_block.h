// A block of attention: some queries against some keys and values, whose result
// can be merged with that of other keys and values.
//
//   // Two blocks of keys, one after the other, give attention over both:
//   ops.Attend({q, k0, v0, query_positions, positions0}, state);
//   ops.Attend({q, k1, v1, query_positions, positions1}, state);
//
// Softmax over parts, merged by the logarithm of the sum of exponentials:
// Milakov and Gimelshein, arXiv 1805.02867; Dao et al., FlashAttention, arXiv
// 2205.14135, algorithms 1 and 4; over ranks: Liu, Zaharia and Abbeel, arXiv
// 2310.01889.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_ATTENTION_BLOCK_H_
#define TESSERA_TENSOR_PARALLEL_OPS_ATTENTION_BLOCK_H_

#include <cstdint>
#include <span>

#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

// Query head h looks at key head h / (heads / kv_heads), which divides evenly.
struct AttentionBlock {
  ConstTensorView query;  // [queries, heads, d]
  ConstTensorView key;    // [keys, kv_heads, d]
  ConstTensorView value;  // [keys, kv_heads, d]
  // Where each is in the sequence. Under `causal` a query sees the keys of its
  // own position and before.
  std::span<const int64_t> query_positions;
  std::span<const int64_t> key_positions;
  bool causal = true;
  double scale = 1;  // Of the products; mostly 1 / sqrt(d).
};

// What was seen so far, to which a block is merged.
struct AttentionState {
  // [queries, heads, d] and [queries, heads], statistics (f64 for f64, else
  // f32). Begin with zeros and minus infinity, as they also stay for a query
  // that has seen nothing.
  TensorView output;
  TensorView log_sum_exp;
};

// The gradients of a block, once all blocks were merged.
struct AttentionGradients {
  ConstTensorView output_gradient;  // [queries, heads, d], as the query.
  ConstTensorView log_sum_exp;      // As Attend left it.
  // [queries, heads], statistics: the sum over d of output times its gradient.
  ConstTensorView delta;
  // To which this block's share is added; statistics.
  TensorView query_gradient;  // [queries, heads, d]
  TensorView key_gradient;    // [keys, kv_heads, d]
  TensorView value_gradient;  // [keys, kv_heads, d]
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_ATTENTION_BLOCK_H_
