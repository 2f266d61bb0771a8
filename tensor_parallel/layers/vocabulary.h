// Layers whose vocabulary is divided among the ranks of a tensor group:
// embedding, projection to logits, and cross-entropy.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct EmbeddingOptions {
  int64_t vocabulary = 0;
  int64_t width = 0;
  DType dtype = DType::kF32;
  bool sequence_parallel = false;
  // The factor of the rows that the embedding looks up (Gemma: the square root
  // of the width). A projection with the same options uses the unscaled table.
  double scale = 1;
};

// Looks up rows of a table [vocabulary, n] by token, where each rank has the
// rows of a part of the vocabulary (Shoeybi et al., arXiv 1909.08053, section
// 3).
//
//   tensor        every rank has               under sequence parallelism
//   ids           i64 [tokens], the same       of all tokens, the same
//   y, gradient   [tokens, n], the same        [its tokens, n]
//
// A rank looks up the rows that it has and uses zeros for the others; the
// result is the sum over the ranks. It is exact because all but one of the
// terms are zero. Otherwise like ColumnParallelLinear.
class VocabularyParallelEmbedding {
 public:
  // InvalidArgument if a size is negative.
  static absl::StatusOr<VocabularyParallelEmbedding> Create(
      const TensorGroup& group, const EmbeddingOptions& options);

  // The table is the weight of a linear layer with `vocabulary` outputs, and
  // FillNormal sets the same values.
  LinearWeights& weights() { return weights_; }
  Parameter& table() { return weights_.weight_parameter(); }
  // Appends the table, named "prefix.weight".
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters) {
    weights_.AppendParameters(prefix, parameters);
  }
  // The partition of the table's rows.
  const Partition& vocabulary() const { return vocabulary_; }

  // Precondition: ids are in [0, vocabulary), which the code that uploads them
  // must check. InvalidArgument if there is not one id per token,
  // FailedPrecondition if the table (in the backward, its gradient) is
  // released.
  absl::Status Forward(const Partition& tokens, ConstTensorView ids,
                       TensorView y);
  // Adds to the gradient of the table. Ids have no gradient.
  absl::Status BackwardWeight(const Partition& tokens, ConstTensorView ids,
                              ConstTensorView y_gradient);

 private:
  VocabularyParallelEmbedding(const TensorGroup& group,
                              const EmbeddingOptions& options,
                              const Partition& vocabulary,
                              LinearWeights weights)
      : group_(group),
        options_(options),
        vocabulary_(vocabulary),
        weights_(std::move(weights)) {}

  absl::Status Scale(TensorView rows);

  TensorGroup group_;
  EmbeddingOptions options_;
  Partition vocabulary_;
  LinearWeights weights_;
  ReusableTensor all_y_{group_.memory(), group_.queue()};
};

// Computes logits = x table^T, where each rank has some rows of the table
// [vocabulary, width]: a column-parallel layer that may share its weight with
// the embedding.
//
//   // Untied: a table of its own.
//   auto projection = VocabularyParallelProjection::Create(group, options);
//   // Tied, both on one rank: one parameter, to whose gradient both add.
//   auto projection = VocabularyParallelProjection::Create(
//       group, options, &embedding.table());
//
// If the table is tied over pipeline stages, the first and the last stage each
// have a table with the same name, rows and values: sum the gradients of
// embedding.table() and projection.table() over the two stages before each
// step, so that both tables stay equal.
//
//   tensor             every rank has                under sequence parallelism
//   x, gradient        [tokens, width], the same     [its tokens, width]
//   logits, gradient   [tokens, its vocabulary]      the same
//
// Otherwise like ColumnParallelLinear.
class VocabularyParallelProjection {
 public:
  // `tied` is not owned; it must outlive this object and must not move.
  // InvalidArgument if a size is negative, or `tied` does not match the options
  // and the rank.
  static absl::StatusOr<VocabularyParallelProjection> Create(
      const TensorGroup& group, const EmbeddingOptions& options,
      Parameter* tied = nullptr);

  Parameter& table() { return *table_; }
  const Parameter& table() const { return *table_; }
  bool tied() const { return own_table_ == nullptr; }
  // The partition of the vocabulary.
  const Partition& vocabulary() const { return vocabulary_; }
  // Appends the table as "prefix.weight", unless it is tied.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // FailedPrecondition if the table, or its gradient, is released.
  absl::Status Forward(const Partition& tokens, ConstTensorView x,
                       TensorView logits);
  absl::Status BackwardInput(const Partition& tokens, ConstTensorView gradient,
                             TensorView x_gradient);
  // Adds to the gradient of the table.
  absl::Status BackwardWeight(const Partition& tokens, ConstTensorView gradient,
                              ConstTensorView x);
  // Both passes; overlaps the computation of the table's gradient with the
  // communication of the input gradient.
  absl::Status Backward(const Partition& tokens, ConstTensorView gradient,
                        ConstTensorView x, TensorView x_gradient);

 private:
  VocabularyParallelProjection(const TensorGroup& group,
                               const EmbeddingOptions& options,
                               const Partition& vocabulary,
                               std::unique_ptr<Parameter> own_table,
                               Parameter* table)
      : group_(group),
        options_(options),
        vocabulary_(vocabulary),
        own_table_(std::move(own_table)),
        table_(table) {}

  absl::StatusOr<ConstTensorView> AllTokens(const Partition& tokens,
                                            ConstTensorView x);
  absl::StatusOr<Pending> StartBackwardInput(const Partition& tokens,
                                             ConstTensorView gradient,
                                             TensorView x_gradient);

  TensorGroup group_;
  EmbeddingOptions options_;
  Partition vocabulary_;
  std::unique_ptr<Parameter> own_table_;
  Parameter* table_;
  ReusableTensor all_x_{group_.memory(), group_.queue()};
  ReusableTensor all_x_gradient_{group_.memory(), group_.queue()};
};

// The state that a forward keeps for its backward: per token, over all ranks,
// the largest logit, the sum of exponentials and the target's logit.
struct CrossEntropyState {
  // `pool` must outlive the state.
  explicit CrossEntropyState(TensorPool& pool) : largest(pool), sums(pool) {}

  int64_t bytes() const { return largest.bytes() + sums.bytes(); }
  void Clear() {
    largest.Release();
    sums.Release();
  }

  PooledTensor largest;  // [tokens], statistics.
  PooledTensor sums;     // [2, tokens], statistics.
};

// The cross-entropy of logits of which each rank has a part of the vocabulary.
// It never gathers the logits.
//
//   VocabularyParallelCrossEntropy loss(group, vocabulary, DType::kF32);
//   CrossEntropyState state(pool);                    // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(loss.Forward(logits, targets, losses, state));
//   TESSERA_RETURN_IF_ERROR(loss.Backward(scales, targets, state, logits));
//
// For each token the ranks exchange three numbers: the largest logit, then the
// sum of exponentials and the target's logit (Shoeybi et al., arXiv 1909.08053,
// section 3). Logits are [tokens, the rank's part of the vocabulary], f64, f32,
// bf16 or f16; every rank has all tokens and gets the same losses. Targets are
// i64 [tokens], losses and scales f64 [tokens], all on the device and
// contiguous. Calls are collectives.
class VocabularyParallelCrossEntropy {
 public:
  // `vocabulary` is the partition over the group's ranks; its size also becomes
  // terms.vocabulary.
  VocabularyParallelCrossEntropy(const TensorGroup& group,
                                 const Partition& vocabulary, DType dtype,
                                 const LossTerms& terms = {})
      : group_(group), vocabulary_(vocabulary), dtype_(dtype), terms_(terms) {
    terms_.vocabulary = vocabulary.size();
  }

  // losses[i] = log(sum of exp(logits of token i)) - logit of targets[i],
  // without the terms; 0 for kNoTarget. Precondition: other targets are in the
  // vocabulary, which the code that uploads them must check. InvalidArgument if
  // a shape or type is wrong.
  absl::Status Forward(ConstTensorView logits, ConstTensorView targets,
                       TensorView losses, CrossEntropyState& state);

  // Overwrites the logits of the forward that set `state` with the gradient of
  // the sum over i of scales[i] * losses[i], including the terms, which need no
  // additional communication. A scale of 0 or the target kNoTarget excludes a
  // token. InvalidArgument for invalid terms (op::CrossEntropyGradient).
  // FailedPrecondition if `state` does not belong to such a forward.
  absl::Status Backward(ConstTensorView scales, ConstTensorView targets,
                        const CrossEntropyState& state, TensorView logits);

 private:
  absl::Status Check(const ConstTensorView& logits,
                     const ConstTensorView& targets,
                     const ConstTensorView& numbers) const;
  absl::Status MaxOver(TensorView x) const;

  TensorGroup group_;
  Partition vocabulary_;
  DType dtype_;
  LossTerms terms_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_H_
