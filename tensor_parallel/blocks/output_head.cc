#include "tensor_parallel/blocks/output_head.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

using Stage = HeadActivations::Stage;

absl::Status CheckStage(const HeadActivations& activations, Stage wanted,
                        std::string_view pass) {
  if (activations.stage() == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("OutputHead::", pass,
                   " of activations whose next pass is another; call Forward, "
                   "BackwardInput and BackwardWeight in order, or clear them"));
}

}  // namespace

absl::StatusOr<OutputHead> OutputHead::Create(const TensorGroup& group,
                                              const OutputHeadOptions& options,
                                              Parameter* tied) {
  TESSERA_ASSIGN_OR_RETURN(
      RmsNorm norm, RmsNorm::Create(group, {.width = options.width,
                                            .epsilon = options.norm_epsilon,
                                            .dtype = options.dtype}));
  TESSERA_ASSIGN_OR_RETURN(
      auto projection,
      VocabularyParallelProjection::Create(group,
                                           {.vocabulary = options.vocabulary,
                                            .width = options.width,
                                            .dtype = options.dtype},
                                           tied));
  OutputHead head(group, options, std::move(norm), std::move(projection));
  std::vector<Parameter*> named;
  head.AppendParameters("", named);
  return head;
}

void OutputHead::AppendParameters(std::string_view prefix,
                                  std::vector<Parameter*>& parameters) {
  norm_.AppendParameters(ParameterName(prefix, "norm"), parameters);
  projection_.AppendParameters(ParameterName(prefix, "output"), parameters);
}

// A tensor as the head's input.
absl::StatusOr<TensorView> OutputHead::Reserve(const Partition& tokens,
                                               PooledTensor& memory) const {
  return memory.Reserve(
      options_.dtype,
      {{group_.TokensBetweenLayers(tokens).size(), options_.width}});
}

absl::Status OutputHead::ComputeLogits(HeadActivations& a) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView normalised,
                           Reserve(a.tokens_, a.normalised_));
  TESSERA_RETURN_IF_ERROR(norm_.Forward(*a.input_view_, normalised, a.norm_));
  const int64_t shape[] = {a.tokens_.size(),
                           projection_.vocabulary().SizeOf(group_.rank())};
  TESSERA_ASSIGN_OR_RETURN(const TensorView logits,
                           a.logits_.Reserve(options_.dtype, shape));
  TESSERA_RETURN_IF_ERROR(projection_.Forward(a.tokens_, normalised, logits));
  return options_.cap == 0
             ? absl::OkStatus()
             : group_.ops().Run(op::SoftCap{options_.cap, logits});
}

absl::Status OutputHead::Forward(const Partition& tokens, ConstTensorView x,
                                 ConstTensorView targets, TensorView losses,
                                 HeadActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckStage(a, Stage::kForward, "Forward"));
  if (tokens.parts() != group_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens are divided among ", tokens.parts(),
                     " ranks; the group has ", group_.size()));
  }
  a.input_view_ = x;
  if (!options_.borrows_tensors) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView input, Reserve(tokens, a.input_));
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Run(op::Copy{x, input}),
        Annotate(_, absl::StrCat("the input of an output head of ",
                                 tokens.size(), " tokens")));
    a.input_view_ = input;
  }
  a.tokens_ = tokens;
  a.targets_ = targets;
  TESSERA_RETURN_IF_ERROR(ComputeLogits(a));
  TESSERA_RETURN_IF_ERROR(
      loss_.Forward(a.logits_.view(), targets, losses, a.loss_));
  if (options_.recompute == Recompute::kFull) {
    a.norm_.Clear();
    a.normalised_.Release();
    a.logits_.Release();
  }
  a.stage_ = Stage::kBackwardInput;
  return absl::OkStatus();
}

// The gradient of the logits, and memory for the gradient of their input.
absl::Status OutputHead::StartBackward(ConstTensorView scales,
                                       HeadActivations& a) {
  if (!a.logits_.held()) TESSERA_RETURN_IF_ERROR(ComputeLogits(a));
  TESSERA_RETURN_IF_ERROR(
      loss_.Backward(scales, *a.targets_, a.loss_, a.logits_.view()));
  a.loss_.Clear();
  return Reserve(a.tokens_, a.normalised_gradient_).status();
}

absl::Status OutputHead::BackwardInput(ConstTensorView scales,
                                       TensorView x_gradient,
                                       HeadActivations& a) {
  TESSERA_RETURN_IF_ERROR(
      CheckStage(a, Stage::kBackwardInput, "BackwardInput"));
  TESSERA_RETURN_IF_ERROR(StartBackward(scales, a));
  TESSERA_RETURN_IF_ERROR(projection_.BackwardInput(
      a.tokens_, a.logits_.view(), a.normalised_gradient_.view()));
  TESSERA_RETURN_IF_ERROR(norm_.BackwardInput(
      a.normalised_gradient_.view(), *a.input_view_, a.norm_, x_gradient));
  a.stage_ = Stage::kBackwardWeight;
  return absl::OkStatus();
}

absl::Status OutputHead::BackwardWeight(HeadActivations& a) {
  TESSERA_RETURN_IF_ERROR(
      CheckStage(a, Stage::kBackwardWeight, "BackwardWeight"));
  TESSERA_RETURN_IF_ERROR(projection_.BackwardWeight(
      a.tokens_, a.logits_.view(), a.normalised_.view()));
  TESSERA_RETURN_IF_ERROR(norm_.BackwardWeight(a.normalised_gradient_.view(),
                                               *a.input_view_, a.norm_));
  a.Clear();
  return absl::OkStatus();
}

absl::Status OutputHead::Backward(ConstTensorView scales, TensorView x_gradient,
                                  HeadActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckStage(a, Stage::kBackwardInput, "Backward"));
  TESSERA_RETURN_IF_ERROR(StartBackward(scales, a));
  TESSERA_RETURN_IF_ERROR(projection_.Backward(a.tokens_, a.logits_.view(),
                                               a.normalised_.view(),
                                               a.normalised_gradient_.view()));
  a.logits_.Release();
  TESSERA_RETURN_IF_ERROR(norm_.BackwardWeight(a.normalised_gradient_.view(),
                                               *a.input_view_, a.norm_));
  TESSERA_RETURN_IF_ERROR(norm_.BackwardInput(
      a.normalised_gradient_.view(), *a.input_view_, a.norm_, x_gradient));
  a.Clear();
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
