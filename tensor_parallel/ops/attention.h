// Attention in blocks: some queries against some keys and values, whose result
// can be merged with that of other keys and values.
//
//   // Two blocks of keys, one after the other, give attention over both:
//   ops.Run(op::Attend{{q, k0, v0, BlockKind::kFull}, state});
//   ops.Run(op::Attend{{q, k1, v1, BlockKind::kCausal}, state});
//
// Softmax over parts, merged by the logarithm of the sum of exponentials:
// Milakov and Gimelshein, arXiv 1805.02867; Dao et al., FlashAttention, arXiv
// 2205.14135, algorithms 1 and 4; over ranks: Liu, Zaharia and Abbeel, arXiv
// 2310.01889.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_ATTENTION_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

// Which keys a query sees. With contiguous or zigzag layouts of sequences over
// ranks every pair of a chunk of queries and a chunk of keys is of one kind.
enum class BlockKind {
  kFull,    // All.
  kCausal,  // Query i sees keys up to i + (keys - queries): the last query sees
            // all keys.
  kNone,    // None: the operation does nothing.
};

// Tensors of one sequence after another. Query head h looks at key head
// h / (heads / kv_heads), which divides evenly. The first three dimensions may
// have any strides.
struct AttentionBlock {
  ConstTensorView query;  // [sequences, queries, heads, d]
  ConstTensorView key;    // [sequences, keys, kv_heads, d]
  ConstTensorView value;  // [sequences, keys, kv_heads, d]
  BlockKind kind = BlockKind::kCausal;
  double scale = 1;  // Of the products; mostly 1 / sqrt(d).
  // i64 [sequences, queries], rows may be apart. A query sees no key whose
  // index is below this number (sliding windows, boundaries of documents). The
  // numbers of a row do not decrease; numbers outside [0, keys] count as the
  // nearest end. The scale must then be positive.
  std::optional<ConstTensorView> first_keys = {};
  // If not 0, scaled products s become cap * tanh(s / cap) (Gemma 2, arXiv
  // 2408.00118, section 2).
  double cap = 0;
  // The block has all keys that its queries see. Results then have the query's
  // type and are overwritten: nothing is merged into a state or added to
  // gradients. Not of kind kNone.
  bool is_whole = false;
};

// The running result of attention, into which a block of keys is merged. A
// whole block overwrites it; its output has the type of the query, and is zero,
// with a log_sum_exp of minus infinity, for queries that see no key.
struct AttentionState {
  // [sequences, queries, heads, d] and [sequences, queries, heads], statistics
  // (f64 for f64, else f32), whose first dimensions may have any strides.
  // Initialise with zeros and minus infinity; queries that see no key keep
  // these values.
  TensorView output;
  TensorView log_sum_exp;
};

// The gradients of a block, once all blocks were merged.
struct AttentionGradients {
  ConstTensorView output_gradient;  // Like the query.
  // As Attend left them.
  ConstTensorView output;
  ConstTensorView log_sum_exp;
  // [sequences, queries, heads], statistics: the sum over d of output times its
  // gradient (RowDots). Not given for a whole block.
  std::optional<ConstTensorView> delta;
  // To which this block's share is added; statistics. A whole block overwrites
  // them; they have the type of the query.
  TensorView query_gradient;  // [sequences, queries, heads, d]
  TensorView key_gradient;    // [sequences, keys, kv_heads, d]
  TensorView value_gradient;  // [sequences, keys, kv_heads, d]
};

namespace op {

// Merges attention over the keys of a block into `state`. With bf16, the
// weights (the softmax of scores) and the gradients of scores may be rounded to
// bf16, once, before they are multiplied by values, keys and queries;
// log_sum_exp has the sums before that.
struct Attend {
  static constexpr std::string_view kName = "Attend";
  AttentionBlock block;
  AttentionState state;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return block.kind == BlockKind::kNone; }
  auto operands() {
    return std::tie(block.query, block.key, block.value, block.first_keys,
                    state.output, state.log_sum_exp);
  }
};

// Adds the gradients of a block.
struct AttendGradient {
  static constexpr std::string_view kName = "AttendGradient";
  AttentionBlock block;
  AttentionGradients gradients;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return block.kind == BlockKind::kNone; }
  auto operands() {
    return std::tie(block.query, block.key, block.value, block.first_keys,
                    gradients.output_gradient, gradients.output,
                    gradients.log_sum_exp, gradients.delta,
                    gradients.query_gradient, gradients.key_gradient,
                    gradients.value_gradient);
  }
};

// Computes the `delta` that AttendGradient needs: dots[...][h] = the sum over d
// of output[...][h] * output_gradient[...][h], with the output as Attend left
// it, or of the type of its gradient; with or without the dimension of
// sequences.
struct RowDots {
  static constexpr std::string_view kName = "RowDots";
  ConstTensorView output, output_gradient;
  TensorView dots;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(output, output_gradient, dots); }
};

// Attention sinks: an additional key for every query, whose score is sinks[h]
// and whose value is zero (GPT-OSS, arXiv 2508.10925, section 2.2). Called once
// all blocks were merged: log_sum_exp[i][h] becomes the logarithm of
// exp(log_sum_exp[i][h]) + exp(sinks[h]), and factors[i][h] is the factor by
// which the output has to be multiplied. `sinks` is [heads], the others are
// statistics of [rows, heads]. AttendGradient of the changed output and
// log_sum_exp then gives the gradients of queries, keys and values.
struct AddSinks {
  static constexpr std::string_view kName = "AddSinks";
  ConstTensorView sinks;
  TensorView log_sum_exp, factors;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(sinks, log_sum_exp, factors); }
};

// delta[i][h] (RowDots of the changed output) becomes row i's share of the
// gradient of sinks[h]: -exp(sinks[h] - log_sum_exp[i][h]) * delta[i][h].
struct SinkGradients {
  static constexpr std::string_view kName = "SinkGradients";
  ConstTensorView sinks, log_sum_exp;
  TensorView delta;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(sinks, log_sum_exp, delta); }
};

// Raises max_scores[h], statistics of [heads], to the largest score of a query
// of head h and a key that it sees: their product, times the scale. Scores that
// are NaN do not count; without any other score max_scores[h] remains. The
// scale is positive, and there is no cap. The values are not used.
struct MaxScores {
  static constexpr std::string_view kName = "MaxScores";
  AttentionBlock block;
  TensorView max_scores;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const {
    return block.kind == BlockKind::kNone || block.query.element_count() == 0 ||
           block.key.element_count() == 0;
  }
  auto operands() {
    return std::tie(block.query, block.key, block.value, block.first_keys,
                    max_scores);
  }
};

using Attention = OperationList<Attend, AttendGradient, RowDots, AddSinks,
                                SinkGradients, MaxScores>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_ATTENTION_H_
