#include "tensor_parallel/layers/vocabulary_parallel_embedding.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

absl::StatusOr<VocabularyParallelEmbedding> VocabularyParallelEmbedding::Create(
    const TensorGroup& group, const EmbeddingOptions& options) {
  if (options.width < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an embedding of width ", options.width, "; 0 and more are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Partition vocabulary,
      Partition::Balanced(options.vocabulary, group.size()));
  TESSERA_ASSIGN_OR_RETURN(
      LinearWeights weights,
      LinearWeights::Create({.in = options.width,
                             .rows = {vocabulary.RangeOf(group.rank())},
                             .columns = {0, options.width},
                             .bias = false,
                             .dtype = options.dtype,
                             .has_memory = group.has_weight_memory(),
                             .out = options.vocabulary}));
  return VocabularyParallelEmbedding(group, options, vocabulary,
                                     std::move(weights));
}

absl::Status VocabularyParallelEmbedding::CheckIds(
    const Partition& tokens, std::span<const int64_t> ids) const {
  if (static_cast<int64_t>(ids.size()) != tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        ids.size(), " ids for ", tokens.size(), " tokens; give one for each"));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (0 <= ids[i] && ids[i] < options_.vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat("token ", i, " is ", ids[i],
                                                   "; the vocabulary has 0 to ",
                                                   options_.vocabulary - 1));
  }
  return absl::OkStatus();
}

absl::Status VocabularyParallelEmbedding::Forward(const Partition& tokens,
                                                  std::span<const int64_t> ids,
                                                  TensorView y) {
  TESSERA_RETURN_IF_ERROR(CheckIds(tokens, ids));
  TESSERA_RETURN_IF_ERROR(weights_.CheckValues());
  const IndexRange held = vocabulary_.RangeOf(group_.rank());
  if (!options_.sequence_parallel) {
    TESSERA_RETURN_IF_ERROR(
        group_.ops().GatherRows(weights_.weight(), held, ids, y));
    return group_.SumOver(y);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_y_.Get(options_.dtype, {{tokens.size(), options_.width}}));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().GatherRows(weights_.weight(), held, ids, all));
  return group_.ScatterSums(tokens, all, y);
}

absl::Status VocabularyParallelEmbedding::BackwardWeight(
    const Partition& tokens, std::span<const int64_t> ids,
    ConstTensorView y_gradient) {
  TESSERA_RETURN_IF_ERROR(CheckIds(tokens, ids));
  TESSERA_RETURN_IF_ERROR(weights_.CheckGradients());
  const IndexRange held = vocabulary_.RangeOf(group_.rank());
  ConstTensorView gradient = y_gradient;
  if (options_.sequence_parallel) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView all,
        all_y_.Get(options_.dtype, {{tokens.size(), options_.width}}));
    TESSERA_RETURN_IF_ERROR(group_.GatherTokens(tokens, y_gradient, all));
    gradient = all;
  }
  return group_.ops().AddRows(gradient, held, ids, weights_.weight_gradient());
}

}  // namespace tessera::tensor_parallel
