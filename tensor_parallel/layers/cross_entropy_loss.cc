#include "tensor_parallel/layers/cross_entropy_loss.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::tensor_parallel {

absl::Status VocabularyParallelCrossEntropy::Check(
    const ConstTensorView& logits, const ConstTensorView& targets,
    const ConstTensorView& numbers) const {
  const int64_t tokens = targets.element_count();
  const int64_t held = vocabulary_.SizeOf(group_.rank());
  if (logits.dtype() != dtype_ || logits.rank() != 2 ||
      logits.shape()[0] != tokens || logits.shape()[1] != held) {
    return absl::InvalidArgumentError(absl::StrCat(
        "logits of rank ", group_.rank(), " should be ", DTypeName(dtype_),
        " of ", tokens, " tokens (as many as targets) and ", held,
        " of the vocabulary's ", vocabulary_.size()));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckTokenNumbers("targets", targets, DType::kI64, tokens));
  return CheckTokenNumbers("losses or scales", numbers, DType::kF64, tokens);
}

absl::Status VocabularyParallelCrossEntropy::MaxOver(TensorView x) const {
  const collectives::Buffer buffer(x.data(), x.element_count(), x.dtype());
  return group_.communicator()->RunOn(
      group_.queue(),
      collectives::AllReduceOf(buffer, buffer, collectives::Reduction::Max()));
}

absl::Status VocabularyParallelCrossEntropy::Forward(ConstTensorView logits,
                                                     ConstTensorView targets,
                                                     TensorView losses,
                                                     CrossEntropyState& state) {
  TESSERA_RETURN_IF_ERROR(Check(logits, targets, losses));
  const int64_t tokens = targets.element_count();
  const DType statistics = GradientDType(dtype_);
  TESSERA_ASSIGN_OR_RETURN(const TensorView largest,
                           state.largest.Reserve(statistics, {{tokens}}));
  // The sums, then the targets' logits, so that both are sent in one message.
  TESSERA_ASSIGN_OR_RETURN(const TensorView both,
                           state.sums.Reserve(statistics, {{2, tokens}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum, both.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView picked, both.Select(0, 1));
  Ops& ops = group_.ops();
  if (group_.size() == 1) {
    TESSERA_RETURN_IF_ERROR(ops.Run(op::MaxAndSumExp{logits, largest, sum}));
  } else {
    TESSERA_RETURN_IF_ERROR(ops.Run(op::RowMax{logits, largest}));
    TESSERA_RETURN_IF_ERROR(MaxOver(largest));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::SumExp{logits, largest, sum}));
  }
  TESSERA_RETURN_IF_ERROR(ops.Run(
      op::Pick{logits, vocabulary_.RangeOf(group_.rank()), targets, picked}));
  TESSERA_RETURN_IF_ERROR(group_.SumOver(both));
  return ops.Run(op::CrossEntropyLosses{largest, sum, picked, targets, losses});
}

absl::Status VocabularyParallelCrossEntropy::Backward(
    ConstTensorView scales, ConstTensorView targets,
    const CrossEntropyState& state, TensorView logits) {
  TESSERA_RETURN_IF_ERROR(Check(logits, targets, scales));
  const int64_t tokens = targets.element_count();
  const bool held = state.largest.held() && state.sums.held();
  if (!held || state.largest.view().shape()[0] != tokens) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient of ", tokens, " tokens; ",
        held ? absl::StrCat("the forward had ", state.largest.view().shape()[0])
             : std::string("there was no forward")));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum,
                           state.sums.view().Select(0, 0));
  return group_.ops().Run(op::CrossEntropyGradient{
      state.largest.view(), sum, vocabulary_.RangeOf(group_.rank()), targets,
      scales, terms_, logits, cap_});
}

}  // namespace tessera::tensor_parallel
