#include "tensor_parallel/layers/vocabulary_parallel_cross_entropy.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::tensor_parallel {

absl::Status VocabularyParallelCrossEntropy::Check(
    const ConstTensorView& logits, std::span<const int64_t> targets,
    size_t numbers) const {
  const auto tokens = static_cast<int64_t>(targets.size());
  const int64_t held = vocabulary_.SizeOf(group_.rank());
  if (logits.dtype() != dtype_ || logits.rank() != 2 ||
      logits.shape()[0] != tokens || logits.shape()[1] != held) {
    return absl::InvalidArgumentError(absl::StrCat(
        "logits of rank ", group_.rank(), " should be ", DTypeName(dtype_),
        " of ", tokens, " tokens (as many as targets) and ", held,
        " of the vocabulary's ", vocabulary_.size()));
  }
  if (numbers != targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(numbers, " losses or scales for ", tokens, " tokens"));
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (0 <= targets[i] && targets[i] < vocabulary_.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the target of token ", i, " is ", targets[i],
                     "; the vocabulary has 0 to ", vocabulary_.size() - 1));
  }
  return absl::OkStatus();
}

absl::Status VocabularyParallelCrossEntropy::MaxOver(TensorView x) const {
  if (group_.size() == 1) return absl::OkStatus();
  return group_.communicator()->AllReduce(
      collectives::Buffer(x.data(), x.element_count(), x.dtype()),
      collectives::Reduction::Max());
}

absl::Status VocabularyParallelCrossEntropy::Forward(
    ConstTensorView logits, std::span<const int64_t> targets,
    std::span<double> losses, CrossEntropyState& state) {
  TESSERA_RETURN_IF_ERROR(Check(logits, targets, losses.size()));
  const auto tokens = static_cast<int64_t>(targets.size());
  const DType statistics = GradientDType(dtype_);
  TESSERA_ASSIGN_OR_RETURN(const TensorView largest,
                           state.largest.Reserve(statistics, {{tokens}}));
  // The sums, then the targets' logits, so that one message has both.
  TESSERA_ASSIGN_OR_RETURN(const TensorView both,
                           state.sums.Reserve(statistics, {{2, tokens}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum, both.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView picked, both.Select(0, 1));
  Ops& ops = group_.ops();
  TESSERA_RETURN_IF_ERROR(ops.RowMax(logits, largest));
  TESSERA_RETURN_IF_ERROR(MaxOver(largest));
  TESSERA_RETURN_IF_ERROR(ops.SumExp(logits, largest, sum));
  TESSERA_RETURN_IF_ERROR(
      ops.Pick(logits, vocabulary_.RangeOf(group_.rank()), targets, picked));
  TESSERA_RETURN_IF_ERROR(group_.SumOver(both));
  return ops.CrossEntropyLosses(largest, sum, picked, losses);
}

absl::Status VocabularyParallelCrossEntropy::Backward(
    std::span<const double> scales, std::span<const int64_t> targets,
    const CrossEntropyState& state, TensorView logits) {
  TESSERA_RETURN_IF_ERROR(Check(logits, targets, scales.size()));
  const auto tokens = static_cast<int64_t>(targets.size());
  const bool held = state.largest.held() && state.sums.held();
  if (!held || state.largest.view().shape()[0] != tokens) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient of ", tokens, " tokens; ",
        held ? absl::StrCat("the forward had ", state.largest.view().shape()[0])
             : std::string("there was no forward")));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum,
                           state.sums.view().Select(0, 0));
  return group_.ops().CrossEntropyGradient(state.largest.view(), sum,
                                           vocabulary_.RangeOf(group_.rank()),
                                           targets, scales, logits);
}

}  // namespace tessera::tensor_parallel
