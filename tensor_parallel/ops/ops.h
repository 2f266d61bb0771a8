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
#ifndef TESSERA_TENSOR_PARALLEL_OPS_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_OPS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// Query head h looks at key head h / (heads / kv_heads), which divides evenly.
struct AttentionBlock {
  ConstTensorView query;  // [queries, heads, d]
  ConstTensorView key;    // [keys, kv_heads, d]
  ConstTensorView value;  // [keys, kv_heads, d]
  // Positions in the sequence. If `causal`, a query sees the keys of its own
  // and earlier positions.
  std::span<const int64_t> query_positions;
  std::span<const int64_t> key_positions;
  bool causal = true;
  double scale = 1;  // Of the products; mostly 1 / sqrt(d).
};

// The running result of attention, into which a block of keys is merged.
struct AttentionState {
  // [queries, heads, d] and [queries, heads], statistics (f64 for f64, else
  // f32). Initialise with zeros and minus infinity; queries that see no key
  // keep these values.
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

// Ops: the arithmetic of layers on one device. Layers use only this interface.
//
//   CpuOps ops;                                   // ops_cpu/cpu_ops.h
//   // y = x w^T: x is [tokens, in], w [out, in], y [tokens, out]
//   TESSERA_RETURN_IF_ERROR(ops.Gemm({.transpose_b = true}, x, w, y));
//
// Tensors are views of base/tensor with the device's memory kind and one dtype
// among f64, f32 and bf16, unless said otherwise. Elements of a row (the last
// dimension) lie side by side; rows may be apart. "Statistics" are f64 for f64
// and f32 for f32 and bf16, contiguous: in these everything is summed up, and
// bf16 results are rounded once. "Adds to" means that what is there counts.
//
// Results do not depend on the number of threads or on how rows are shared
// among calls: a row alone gives the bits that it gives in a batch, and sums
// over rows go on from what the target holds. Products of matrices (Gemm,
// Attend, AttendGradient) are exempt, and bf16 targets of sums, which are
// rounded at the end of each call. Shapes may have zeros.
//
// Tensors of one call do not overlap, but for outputs of elementwise operations
// and norms, which may be the view of an input.
//
// Errors: InvalidArgument that names the operation, the tensor, its shape or
// type and what it should be; nothing has been written then. Calls of one
// object are made by one thread at a time.

struct GemmOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  double alpha = 1;
  double beta = 0;  // 0: what is in c does not count, be it NaN.
};

class Ops {
 public:
  virtual ~Ops() = default;

  // c = alpha op(a) op(b) + beta c; op(a) is [m, k], op(b) [k, n], c [m, n]. c
  // may also have the type of statistics if a and b are bf16 (gradients of
  // weights that are accumulated in f32).
  virtual absl::Status Gemm(const GemmOptions& options, ConstTensorView a,
                            ConstTensorView b, TensorView c) = 0;

  // Every row of x [rows, n] plus `bias` [n]; and the gradient of the bias:
  // adds the sum of the rows of `gradient` to `bias_gradient` [n], which may
  // have the type of statistics.
  virtual absl::Status AddBias(ConstTensorView bias, TensorView x) = 0;
  virtual absl::Status SumRows(ConstTensorView gradient,
                               TensorView bias_gradient) = 0;

  // y = x, with equal types and shapes and any strides; y += x, where y may
  // have the type of statistics; x *= factor; x = value; y = x between a type
  // and its statistics, in both directions. Any number of dimensions.
  virtual absl::Status Copy(ConstTensorView x, TensorView y) = 0;
  virtual absl::Status Add(ConstTensorView x, TensorView y) = 0;
  virtual absl::Status Scale(double factor, TensorView x) = 0;
  virtual absl::Status Fill(double value, TensorView x) = 0;
  virtual absl::Status Cast(ConstTensorView x, TensorView y) = 0;

  // Drops elements of x [rows, width], contiguous (random/dropout.h).
  virtual absl::Status Dropout(const DropoutMask& mask, TensorView x) = 0;

  // y = x / sqrt(mean(x^2) + epsilon) * weight over rows of x [rows, n],
  // keeping 1 / sqrt(...) in `inverse` [rows], of statistics (Zhang and
  // Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019). The backward
  // sets `x_gradient` and adds to `weight_gradient` [n], which may have the
  // type of statistics; its parts are apart, so that zero-bubble schedules can
  // use them.
  virtual absl::Status RmsNorm(double epsilon, ConstTensorView x,
                               ConstTensorView weight, TensorView y,
                               TensorView inverse) = 0;
  virtual absl::Status RmsNormInputGradient(ConstTensorView gradient,
                                            ConstTensorView x,
                                            ConstTensorView weight,
                                            ConstTensorView inverse,
                                            TensorView x_gradient) = 0;
  virtual absl::Status RmsNormWeightGradient(ConstTensorView gradient,
                                             ConstTensorView x,
                                             ConstTensorView inverse,
                                             TensorView weight_gradient) = 0;

  // y = gate / (1 + exp(-gate)) * up, all [rows, n] (Shazeer, arXiv
  // 2002.05202).
  virtual absl::Status SwiGlu(ConstTensorView gate, ConstTensorView up,
                              TensorView y) = 0;
  virtual absl::Status SwiGluGradient(ConstTensorView gradient,
                                      ConstTensorView gate, ConstTensorView up,
                                      TensorView gate_gradient,
                                      TensorView up_gradient) = 0;

  // Turns the pairs (x[i], x[i + d/2]) of every head of x [tokens, heads, d] by
  // positions[token] * base^(-2i/d), in place; by the opposite angle where
  // `inverse` (which is the gradient). Su et al., arXiv 2104.09864, with
  // Llama's order of the pairs.
  virtual absl::Status Rotate(double base, bool inverse,
                              std::span<const int64_t> positions,
                              TensorView x) = 0;

  // Row i of y [tokens, n] is row ids[i] - held.begin of `table` [held.size(),
  // n], or zeros if `held` does not contain ids[i]. The gradient adds rows to
  // `table_gradient`, in the order of i; it may have the type of statistics.
  // Ids may repeat.
  virtual absl::Status GatherRows(ConstTensorView table, IndexRange held,
                                  std::span<const int64_t> ids,
                                  TensorView y) = 0;
  virtual absl::Status AddRows(ConstTensorView gradient, IndexRange held,
                               std::span<const int64_t> ids,
                               TensorView table_gradient) = 0;

  // Softmax cross-entropy over a range `held` of the vocabulary, in parts that
  // ranks combine in between. `logits` is [tokens, held.size()].
  //   largest[i] = max of row i (minus infinity for an empty one)
  //   sum[i]     = sum of exp(logits[i] - largest[i])
  //   picked[i]  = logits[i][targets[i] - held.begin], 0 where that is not held
  // All are statistics [tokens]. From those of all ranks follow, on the host,
  //   losses[i] = log(sum[i]) + largest[i] - picked[i]
  // The gradient overwrites `logits`:
  //   (exp(logits[i] - largest[i]) / sum[i] - [targets[i] is this one])
  //       * scales[i]
  // and zeros where scales[i] is 0, whatever the logits.
  virtual absl::Status RowMax(ConstTensorView logits, TensorView largest) = 0;
  virtual absl::Status SumExp(ConstTensorView logits, ConstTensorView largest,
                              TensorView sum) = 0;
  virtual absl::Status Pick(ConstTensorView logits, IndexRange held,
                            std::span<const int64_t> targets,
                            TensorView picked) = 0;
  virtual absl::Status CrossEntropyLosses(ConstTensorView largest,
                                          ConstTensorView sum,
                                          ConstTensorView picked,
                                          std::span<double> losses) = 0;
  virtual absl::Status CrossEntropyGradient(ConstTensorView largest,
                                            ConstTensorView sum,
                                            IndexRange held,
                                            std::span<const int64_t> targets,
                                            std::span<const double> scales,
                                            TensorView logits) = 0;

  // See AttentionState and AttentionGradients. RowDots makes the `delta` that
  // the gradient needs: dots[i][h] = the sum over d of output[i][h] *
  // output_gradient[i][h], the output as Attend left it.
  virtual absl::Status Attend(const AttentionBlock& block,
                              const AttentionState& state) = 0;
  virtual absl::Status AttendGradient(const AttentionBlock& block,
                                      const AttentionGradients& gradients) = 0;
  virtual absl::Status RowDots(ConstTensorView output,
                               ConstTensorView output_gradient,
                               TensorView dots) = 0;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_OPS_H_
