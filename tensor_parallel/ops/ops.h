// Ops: the arithmetic of layers on one device.
//
//   CpuOps ops;                                   // ops_cpu/cpu_ops.h
//   // y = x w^T: x is [tokens, in], w [out, in], y [tokens, out]
//   TESSERA_RETURN_IF_ERROR(ops.Gemm({.transpose_b = true}, x, w, y));
//
// Attention comes in blocks: some queries against some keys and values, whose
// result can be merged with that of other keys and values.
//
//   // Two blocks of keys, one after the other, give attention over both:
//   ops.Attend({q, k0, v0, BlockKind::kFull}, state);
//   ops.Attend({q, k1, v1, BlockKind::kCausal}, state);
//
// Softmax over parts, merged by the logarithm of the sum of exponentials:
// Milakov and Gimelshein, arXiv 1805.02867; Dao et al., FlashAttention, arXiv
// 2205.14135, algorithms 1 and 4; over ranks: Liu, Zaharia and Abbeel, arXiv
// 2310.01889. Products in fp8 with scales of earlier steps: Micikevicius et
// al., FP8 Formats for Deep Learning, arXiv 2209.05433; NVIDIA Transformer
// Engine, delayed scaling.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_OPS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/glu.h"
#include "tensor_parallel/ops/rotary.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// The target of a token that does not count: it has no loss and no gradient.
inline constexpr int64_t kNoTarget = -1;

// What training minimises besides the cross-entropy of a token's target. With p
// the probabilities of its `vocabulary` words, the loss of a token is
//
//   (1 - label_smoothing) * -log p(target)
//       + label_smoothing * (mean over all words of -log p(word))
//       + z_loss * (log of the sum of exponentials of its logits)^2
//
// Label smoothing: Szegedy et al., arXiv 1512.00567, section 7. The z-loss
// keeps logits near those that a softmax needs: Chowdhery et al., PaLM, arXiv
// 2204.02311, section 5.
struct LossTerms {
  double label_smoothing = 0;  // In [0, 1).
  double z_loss = 0;           // At least 0, finite.
  // All words, of which a rank holds some. Only for label_smoothing.
  int64_t vocabulary = 0;

  friend bool operator==(const LossTerms&, const LossTerms&) = default;
};

// How the experts of a token are chosen among all, and weighted (Shazeer et
// al., arXiv 1701.06538; the sigmoid and its bias: DeepSeek-V3, arXiv
// 2412.19437, section 2.1.2).
enum class RouterScore {
  kSoftmax,  // Over all experts.
  kSigmoid,  // Of each expert by itself.
};

struct RouterOptions {
  RouterScore score = RouterScore::kSoftmax;
  int64_t per_token = 1;  // Experts of a token, at least 1.
  bool normalise = true;  // The weights of a token add up to `scale`.
  double scale = 1;

  friend bool operator==(const RouterOptions&, const RouterOptions&) = default;
};

// Which keys a query sees. With contiguous or zigzag layouts of sequences over
// ranks every pair of a chunk of queries and a chunk of keys is of one kind.
enum class BlockKind {
  kFull,    // All.
  kCausal,  // Query i those up to i + (keys - queries): the last query sees
            // all.
  kNone,    // None: the call does nothing.
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
  // i64 [sequences, queries], rows may be apart. A query also sees no key whose
  // index is below this number (sliding windows, boundaries of documents). The
  // numbers of a row do not decrease; numbers outside [0, keys] count as the
  // nearest end. The scale must be positive then.
  std::optional<ConstTensorView> first_keys = {};
};

// The running result of attention, into which a block of keys is merged.
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
  ConstTensorView output_gradient;  // As the query.
  // As Attend left them.
  ConstTensorView output;
  ConstTensorView log_sum_exp;
  // [sequences, queries, heads], statistics: the sum over d of output times its
  // gradient (RowDots).
  ConstTensorView delta;
  // To which this block's share is added; statistics.
  TensorView query_gradient;  // [sequences, queries, heads, d]
  TensorView key_gradient;    // [sequences, keys, kv_heads, d]
  TensorView value_gradient;  // [sequences, keys, kv_heads, d]
};

// Layers use only this interface. Work is enqueued on the queue of the ops and
// takes effect in the order of the calls: results are there for later work on
// that queue, not for the host (base/device/device.h).
//
// Tensors are views of base/tensor in the device's memory and of one dtype
// among f64, f32, bf16 and f16, unless said otherwise. Elements of a row (the
// last dimension) lie side by side; rows may be apart. "Statistics" are f64 for
// f64 and f32 for f32, bf16 and f16, contiguous: in these everything is summed
// up, and bf16 results are rounded once. "Adds to" means that what is there
// counts. Ids, targets and positions are contiguous i64.
//
// The same device gives the same bits for the same shapes; devices differ by
// the order of their sums. On the CPU results do not depend on the number of
// threads, nor on how rows are shared among calls: a row alone gives the bits
// that it gives in a batch, and sums over rows go on from what the target
// holds. From the latter products of matrices (Gemm, Attend, AttendGradient)
// are exempt, and bf16 targets of sums, which are rounded at the end of each
// call. Shapes may have zeros.
//
// Tensors of one call do not overlap, but for outputs of elementwise operations
// and norms, which may be the view of an input.
//
// Errors: InvalidArgument that names the operation, the tensor, its shape or
// type and what it should be; nothing is enqueued then. Values that cannot be
// (an id outside the vocabulary) are found when the work runs, and the queue
// returns the error. Calls of one object are made by one thread at a time.

struct GemmOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  double alpha = 1;
  double beta = 0;  // 0: what is in c does not count, be it NaN.
};

struct Fp8GemmOptions {
  bool accumulate = false;  // Adds to c instead of overwriting it.
  // Permits the device to keep fewer than f32's bits in partial sums (Hopper
  // keeps about 14). For the forward; gradients need them.
  bool fast = false;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // The queue of all work.
  virtual Queue& queue() const = 0;

  // False for operations that compute nothing (counting_ops.h): a layer whose
  // shapes depend on values assumes some.
  virtual bool computes() const { return true; }

  // The place in the source of the next calls, for errors of the device.
  void SetPlace(const SourcePlace& place) { place_ = place; }

  // c = alpha op(a) op(b) + beta c; op(a) is [m, k], op(b) [k, n], c [m, n]. c
  // may also have the type of statistics if a and b are bf16 (gradients of
  // weights that are accumulated in f32).
  virtual absl::Status Gemm(const GemmOptions& options, ConstTensorView a,
                            ConstTensorView b, TensorView c) = 0;

  // Operands of products in fp8. CastTranspose multiplies x [m, n], of f32 or
  // bf16, by `scale` and rounds it to nearest even, once, to y [m, n] and
  // `transposed` [n, m], of fp8_e4m3 or fp8_e5m2; each may be [0, 0], and is
  // not written then. Values beyond the largest finite one, and infinities,
  // become it with their sign; a NaN stays a NaN. `amax` becomes the larger of
  // itself and of all |x|, a NaN if one is. `scale` and `amax` are f32 with one
  // element. Every device gives the same bits.
  virtual absl::Status CastTranspose(ConstTensorView x, ConstTensorView scale,
                                     TensorView amax, TensorView y,
                                     TensorView transposed) = 0;

  // c = a_inverse b_inverse a b^T, or the same added to c; a is [m, k], b [n,
  // k], both of fp8 and not both of fp8_e5m2; c [m, n] is of f32 or bf16. The
  // inverses are f32 with one element: 1 / scale of CastTranspose. A GPU
  // requires sizes that are multiples of 16.
  virtual absl::Status GemmFp8(const Fp8GemmOptions& options, ConstTensorView a,
                               ConstTensorView a_inverse, ConstTensorView b,
                               ConstTensorView b_inverse, TensorView c) = 0;

  // Scales of n operands for the next step (delayed scaling), all of f32. The
  // rows of `history` [steps, n] move down by one, the first becomes `amax`
  // [n] and the last is dropped; `amax` becomes zeros. An amax that is not
  // finite counts as 0. Then with the largest value of the column
  //   scale = largest / (that 2^margin), at most 2^100; inverse = 1 / scale
  // where it is not 0; other scales stay. `largest` [n] is the largest finite
  // value of the operand's format. Without history (0 steps) the scale follows
  // `amax`, which stays. Every device gives the same bits.
  virtual absl::Status UpdateScales(int margin, ConstTensorView largest,
                                    TensorView amax, TensorView history,
                                    TensorView scale, TensorView inverse) = 0;

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
  // use them. The operations on sums read and write memory once, and give the
  // bits of the two operations:
  //   AddRmsNorm               Add(residual, x), then RmsNorm of x
  //   AddRmsNormInputGradient  RmsNormInputGradient, then
  //                            Add(residual_gradient, x_gradient)
  // `y` may be `residual`, but not x; `x_gradient` may be `gradient` or
  // `residual_gradient`.
  virtual absl::Status RmsNorm(double epsilon, ConstTensorView x,
                               ConstTensorView weight, TensorView y,
                               TensorView inverse) = 0;
  virtual absl::Status RmsNormInputGradient(ConstTensorView gradient,
                                            ConstTensorView x,
                                            ConstTensorView weight,
                                            ConstTensorView inverse,
                                            TensorView x_gradient) = 0;
  virtual absl::Status AddRmsNorm(double epsilon, ConstTensorView residual,
                                  ConstTensorView weight, TensorView x,
                                  TensorView y, TensorView inverse) = 0;
  virtual absl::Status AddRmsNormInputGradient(
      ConstTensorView gradient, ConstTensorView x, ConstTensorView weight,
      ConstTensorView inverse, ConstTensorView residual_gradient,
      TensorView x_gradient) = 0;
  virtual absl::Status RmsNormWeightGradient(ConstTensorView gradient,
                                             ConstTensorView x,
                                             ConstTensorView inverse,
                                             TensorView weight_gradient) = 0;

  // y = activation(gate) * up, all [rows, n].
  virtual absl::Status Glu(GluKind kind, ConstTensorView gate,
                           ConstTensorView up, TensorView y) = 0;
  virtual absl::Status GluGradient(GluKind kind, ConstTensorView gradient,
                                   ConstTensorView gate, ConstTensorView up,
                                   TensorView gate_gradient,
                                   TensorView up_gradient) = 0;

  // Turns the pairs (x[i], x[i + d/2]) of every head of x [tokens, heads, d] by
  // positions[token] * frequencies.Of(i, d), in place; by the opposite angle
  // where `inverse` (which is the gradient). Su et al., arXiv 2104.09864, with
  // Llama's order of the pairs.
  virtual absl::Status Rotate(const RotaryFrequencies& frequencies,
                              bool inverse, ConstTensorView positions,
                              TensorView x) = 0;

  // Row i of y [tokens, n] is row ids[i] - held.begin of `table` [held.size(),
  // n], or zeros if `held` does not contain ids[i]. The gradient adds rows to
  // `table_gradient`, in the order of i; it may have the type of statistics.
  // Ids may repeat.
  virtual absl::Status GatherRows(ConstTensorView table, IndexRange held,
                                  ConstTensorView ids, TensorView y) = 0;
  virtual absl::Status AddRows(ConstTensorView gradient, IndexRange held,
                               ConstTensorView ids,
                               TensorView table_gradient) = 0;

  // Softmax cross-entropy over a range `held` of the vocabulary, in parts that
  // ranks combine in between. `logits` is [tokens, held.size()].
  //   largest[i] = max of row i (minus infinity for an empty one)
  //   sum[i]     = sum of exp(logits[i] - largest[i])
  //   picked[i]  = logits[i][targets[i] - held.begin], 0 where that is not held
  // All are statistics [tokens]. From those of all ranks follow the losses, f64
  // [tokens]:
  //   losses[i] = log(sum[i]) + largest[i] - picked[i]
  // and 0 where targets[i] is negative, which is no target (kNoTarget).
  // The gradient of losses and `terms` overwrites `logits`; scales are f64
  // [tokens]. With s = terms.label_smoothing and l = log(sum[i]) + largest[i]:
  //   (exp(logits[i] - largest[i]) / sum[i] * (1 + 2 * terms.z_loss * l)
  //       - (1 - s) * [targets[i] is this one] - s / terms.vocabulary)
  //       * scales[i]
  // and zeros where scales[i] is 0 or targets[i] is negative, whatever the
  // logits.
  virtual absl::Status RowMax(ConstTensorView logits, TensorView largest) = 0;
  virtual absl::Status SumExp(ConstTensorView logits, ConstTensorView largest,
                              TensorView sum) = 0;
  virtual absl::Status Pick(ConstTensorView logits, IndexRange held,
                            ConstTensorView targets, TensorView picked) = 0;
  virtual absl::Status CrossEntropyLosses(ConstTensorView largest,
                                          ConstTensorView sum,
                                          ConstTensorView picked,
                                          ConstTensorView targets,
                                          TensorView losses) = 0;
  virtual absl::Status CrossEntropyGradient(
      ConstTensorView largest, ConstTensorView sum, IndexRange held,
      ConstTensorView targets, ConstTensorView scales, const LossTerms& terms,
      TensorView logits) = 0;

  // The experts of each token and their weights, from logits [tokens, experts]:
  //   scores[t][e] = softmax or sigmoid of logits[t][e]
  //   experts[t]   = the per_token experts with the largest scores[t][e] +
  //                  bias[e], the largest first, of equal ones the first
  //   weights[t]   = scale * scores[t][experts[t]], with `normalise` divided by
  //                  the sum of the scores of the token's experts
  // `bias` is [experts] or [0] (none); weights are [tokens, per_token]; both
  // are statistics; experts are i64 of the same shape. Logits that are NaN are
  // chosen last.
  //
  // The gradient sets `logits_gradient` [tokens, experts], statistics, to that
  // of
  //   sum of weights_gradient * weights
  //       + sum of balance[s][e] * p[t][e] + sum of z_loss * l[t]^2
  // where p are the scores divided by their sum over all experts, l the
  // logarithm of the sum of exponentials of a token's logits, and s the token's
  // sequence: `balance` is [sequences, experts], statistics, of as many tokens
  // each, or [0, experts] (none). Which experts are chosen has no gradient.
  virtual absl::Status Route(const RouterOptions& options,
                             ConstTensorView logits, ConstTensorView bias,
                             TensorView weights, TensorView experts) = 0;
  virtual absl::Status RouteGradient(const RouterOptions& options,
                                     ConstTensorView logits,
                                     ConstTensorView experts,
                                     ConstTensorView weights_gradient,
                                     ConstTensorView balance, double z_loss,
                                     TensorView logits_gradient) = 0;

  // y[i] = scales[i] * x[i], rows of x [rows, n]; scales [rows] are statistics.
  // The gradient sets scales_gradient[i] to the sum of gradient[i] * x[i], and
  // x_gradient[i] to scales[i] * gradient[i]. y may be x; x_gradient may be
  // `gradient`.
  virtual absl::Status ScaleRows(ConstTensorView scales, ConstTensorView x,
                                 TensorView y) = 0;
  virtual absl::Status ScaleRowsGradient(ConstTensorView gradient,
                                         ConstTensorView scales,
                                         ConstTensorView x,
                                         TensorView x_gradient,
                                         TensorView scales_gradient) = 0;

  // total = factor * (x[0] + x[1] + ...), added in this order; x is f64 [n],
  // `total` f64 with one element.
  virtual absl::Status Sum(double factor, ConstTensorView x,
                           TensorView total) = 0;

  // See AttentionState and AttentionGradients. With bf16, the weights (the
  // softmax of scores) and the gradients of scores may be rounded to bf16,
  // once, before they are multiplied by values, keys and queries; log_sum_exp
  // has the sums before that. RowDots makes the `delta` that the gradient
  // needs: dots[...][h] = the sum over d of output[...][h] *
  // output_gradient[...][h], the output as Attend left it; with or without the
  // dimension of sequences.
  virtual absl::Status Attend(const AttentionBlock& block,
                              const AttentionState& state) = 0;
  virtual absl::Status AttendGradient(const AttentionBlock& block,
                                      const AttentionGradients& gradients) = 0;
  virtual absl::Status RowDots(ConstTensorView output,
                               ConstTensorView output_gradient,
                               TensorView dots) = 0;

 protected:
  const SourcePlace& place() const { return place_; }

 private:
  SourcePlace place_ = SourcePlace::current();
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_OPS_H_
