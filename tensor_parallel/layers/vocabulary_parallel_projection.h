// VocabularyParallelProjection: logits = x table^T, where each rank has the
// rows of some words of the table [vocabulary, width]: a column-parallel layer
// whose weight may be that of the embedding.
//
//   // Untied: a table of its own.
//   auto projection = VocabularyParallelProjection::Create(group, options);
//   // Tied, both on one rank: one parameter, to whose gradient both add.
//   auto projection = VocabularyParallelProjection::Create(
//       group, options, &embedding.table());
//
// Tied over pipeline stages, the first and the last one have a table each, of
// the same name and values: sum the gradients of embedding.table() and
// projection.table() over the two before each step, and both stay equal. The
// two hold the same rows of the table.
//
//   tensor             every rank has                under sequence parallelism
//   x, gradient        [tokens, width], the same     [its tokens, width]
//   logits, gradient   [tokens, its vocabulary]      the same
//
// Otherwise as ColumnParallelLinear.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_PROJECTION_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_PROJECTION_H_

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/reusable_tensor.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/vocabulary_parallel_embedding.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

class VocabularyParallelProjection {
 public:
  // `tied` is not owned; it must outlive this, and stay where it is.
  // InvalidArgument where a size is negative, or `tied` is not a part of such a
  // table as the options and the rank say.
  static absl::StatusOr<VocabularyParallelProjection> Create(
      const TensorGroup& group, const EmbeddingOptions& options,
      Parameter* tied = nullptr);

  Parameter& table() { return *table_; }
  const Parameter& table() const { return *table_; }
  bool tied() const { return own_table_ == nullptr; }
  // The words that each rank has.
  const Partition& vocabulary() const { return vocabulary_; }
  // Appends the table as "prefix.weight", unless it is somebody else's.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // FailedPrecondition where the table, or its gradient, is released.
  absl::Status Forward(const Partition& tokens, ConstTensorView x,
                       TensorView logits);
  absl::Status BackwardInput(const Partition& tokens, ConstTensorView gradient,
                             TensorView x_gradient);
  // Adds to the gradient of the table.
  absl::Status BackwardWeight(const Partition& tokens, ConstTensorView gradient,
                              ConstTensorView x);
  // Both: one is computed while the other travels.
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
  ReusableTensor all_x_{group_.memory()};
  ReusableTensor all_x_gradient_{group_.memory()};
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_PROJECTION_H_
