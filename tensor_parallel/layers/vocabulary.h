// Layers whose vocabulary is divided among the ranks of a tensor group:
// embedding and projection to logits. The loss is in cross_entropy_loss.h.
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

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_H_
