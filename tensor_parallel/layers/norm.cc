#include "tensor_parallel/layers/norm.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

absl::StatusOr<Parameter> CreateWeight(const TensorGroup& group,
                                       const NormOptions& options,
                                       std::string_view name, double value) {
  // Not <: neither is a NaN allowed.
  if (options.width < 0 || !(options.epsilon >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a norm of width ", options.width, " and epsilon ",
                     options.epsilon, "; 0 and more are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      Parameter weight,
      Parameter::Create({.name = std::string(name),
                         .shape = {options.width},
                         .rows = {{{0, options.width}, group.rank() == 0}},
                         .replicated = true,
                         .dtype = options.dtype,
                         .has_memory = group.has_weight_memory()}));
  if (weight.has_value()) TESSERA_RETURN_IF_ERROR(weight.Fill(value));
  return weight;
}

absl::StatusOr<int64_t> RowsOf(std::string_view norm,
                               const ConstTensorView& x) {
  if (x.rank() == 2) return x.shape()[0];
  return absl::InvalidArgumentError(absl::StrCat(
      norm, " of a tensor of ", x.rank(), " dimensions; give [tokens, width]"));
}

absl::Status CheckState(std::string_view norm, const ConstTensorView& x,
                        const PooledTensor& statistics) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows, RowsOf(norm, x));
  if (statistics.held() && statistics.view().shape()[0] == rows) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the backward of ", norm, " for ", rows, " tokens, with the state of ",
      statistics.held()
          ? absl::StrCat("a forward of ", statistics.view().shape()[0])
          : std::string("no forward")));
}

absl::StatusOr<RmsNorm> RmsNorm::Create(const TensorGroup& group,
                                        const NormOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(Parameter weight,
                           CreateWeight(group, options, "weight", 1));
  return RmsNorm(group, options, std::move(weight));
}

void RmsNorm::AppendParameters(std::string_view prefix,
                               std::vector<Parameter*>& parameters) {
  weight_.Rename(ParameterName(prefix, "weight"));
  parameters.push_back(&weight_);
}

absl::Status RmsNorm::Forward(ConstTensorView x, TensorView y,
                              NormState& state) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows, RowsOf("RmsNorm", x));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView inverse,
      state.inverse.Reserve(GradientDType(options_.dtype), {{rows}}));
  return group_.ops().RmsNorm(options_.epsilon, x, weight_.value(), y, inverse);
}

absl::Status RmsNorm::BackwardInput(ConstTensorView gradient, ConstTensorView x,
                                    const NormState& state,
                                    TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_RETURN_IF_ERROR(CheckState("RmsNorm", x, state.inverse));
  return group_.ops().RmsNormInputGradient(gradient, x, weight_.value(),
                                           state.inverse.view(), x_gradient);
}

absl::Status RmsNorm::BackwardWeight(ConstTensorView gradient,
                                     ConstTensorView x,
                                     const NormState& state) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(CheckState("RmsNorm", x, state.inverse));
  return group_.ops().RmsNormWeightGradient(gradient, x, state.inverse.view(),
                                            weight_.gradient());
}

absl::Status RmsNorm::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  return options_.sequence_parallel ? group_.SumOver(weight_.gradient())
                                    : absl::OkStatus();
}

absl::StatusOr<LayerNorm> LayerNorm::Create(const TensorGroup& group,
                                            const NormOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(Parameter weight,
                           CreateWeight(group, options, "weight", 1));
  TESSERA_ASSIGN_OR_RETURN(Parameter bias,
                           CreateWeight(group, options, "bias", 0));
  return LayerNorm(group, options, std::move(weight), std::move(bias));
}

void LayerNorm::AppendParameters(std::string_view prefix,
                                 std::vector<Parameter*>& parameters) {
  weight_.Rename(ParameterName(prefix, "weight"));
  bias_.Rename(ParameterName(prefix, "bias"));
  parameters.push_back(&weight_);
  parameters.push_back(&bias_);
}

absl::Status LayerNorm::Forward(ConstTensorView x, TensorView y,
                                NormState& state) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_RETURN_IF_ERROR(bias_.CheckValue());
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows, RowsOf("LayerNorm", x));
  const DType statistics = GradientDType(options_.dtype);
  TESSERA_ASSIGN_OR_RETURN(const TensorView mean,
                           state.mean.Reserve(statistics, {{rows}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverse,
                           state.inverse.Reserve(statistics, {{rows}}));
  return group_.ops().LayerNorm(options_.epsilon, x, weight_.value(),
                                bias_.value(), y, mean, inverse);
}

absl::Status LayerNorm::BackwardInput(ConstTensorView gradient,
                                      ConstTensorView x, const NormState& state,
                                      TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_RETURN_IF_ERROR(CheckState("LayerNorm", x, state.mean));
  return group_.ops().LayerNormInputGradient(gradient, x, weight_.value(),
                                             state.mean.view(),
                                             state.inverse.view(), x_gradient);
}

absl::Status LayerNorm::BackwardWeight(ConstTensorView gradient,
                                       ConstTensorView x,
                                       const NormState& state) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(bias_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(CheckState("LayerNorm", x, state.mean));
  TESSERA_RETURN_IF_ERROR(group_.ops().LayerNormWeightGradient(
      gradient, x, state.mean.view(), state.inverse.view(),
      weight_.gradient()));
  return group_.ops().SumRows(gradient, bias_.gradient());
}

absl::Status LayerNorm::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(bias_.CheckGradient());
  if (!options_.sequence_parallel) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(group_.SumOver(weight_.gradient()));
  return group_.SumOver(bias_.gradient());
}

}  // namespace tessera::tensor_parallel
