// VocabularyParallelEmbedding: rows of a table [vocabulary, n] by token, where
// each rank has the rows of some tokens of the vocabulary (Shoeybi et al.,
// arXiv 1909.08053, section 3).
//
//   tensor        every rank has               under sequence parallelism
//   ids           of all tokens                of all tokens
//   y, gradient   [tokens, n], the same        [its tokens, n]
//
// A rank finds the rows that it has, zeros for the others, and the sum over the
// ranks is the result: exact, for all but one of its terms are zeros. Otherwise
// as ColumnParallelLinear.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_EMBEDDING_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_EMBEDDING_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/linear_weights.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/reusable_tensor.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct EmbeddingOptions {
  int64_t vocabulary = 0;
  int64_t width = 0;
  DType dtype = DType::kF32;
  bool sequence_parallel = false;
};

class VocabularyParallelEmbedding {
 public:
  // InvalidArgument where a size is negative.
  static absl::StatusOr<VocabularyParallelEmbedding> Create(
      const TensorGroup& group, const EmbeddingOptions& options);

  // The table is the weight: row by row as FillNormal of a linear layer with
  // `vocabulary` outputs.
  LinearWeights& weights() { return weights_; }
  Parameter& table() { return weights_.weight_parameter(); }
  // Appends the table, named "prefix.weight".
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters) {
    weights_.AppendParameters(prefix, parameters);
  }
  // The rows that each rank has.
  const Partition& vocabulary() const { return vocabulary_; }

  // InvalidArgument where an id is not in [0, vocabulary), FailedPrecondition
  // where the table (or its gradient, in the backward) is released.
  absl::Status Forward(const Partition& tokens, std::span<const int64_t> ids,
                       TensorView y);
  // Adds to the gradient of the table. There is none of the ids.
  absl::Status BackwardWeight(const Partition& tokens,
                              std::span<const int64_t> ids,
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

  absl::Status CheckIds(const Partition& tokens,
                        std::span<const int64_t> ids) const;

  TensorGroup group_;
  EmbeddingOptions options_;
  Partition vocabulary_;
  LinearWeights weights_;
  ReusableTensor all_y_{group_.memory()};
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_EMBEDDING_H_
