#include "tensor_parallel/layers/layer_norm.h"

#include <cstdint>
#include <utility>

#include "base/status_macros.h"
#include "tensor_parallel/layers/norm_parameter.h"

namespace tessera::tensor_parallel {

absl::StatusOr<LayerNorm> LayerNorm::Create(const TensorGroup& group,
                                            const NormOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(Parameter weight, norm_internal::CreateWeight(
                                                 group, options, "weight", 1));
  TESSERA_ASSIGN_OR_RETURN(
      Parameter bias, norm_internal::CreateWeight(group, options, "bias", 0));
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
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows,
                           norm_internal::RowsOf("LayerNorm", x));
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
  TESSERA_RETURN_IF_ERROR(
      norm_internal::CheckState("LayerNorm", x, state.mean));
  return group_.ops().LayerNormInputGradient(gradient, x, weight_.value(),
                                             state.mean.view(),
                                             state.inverse.view(), x_gradient);
}

absl::Status LayerNorm::BackwardWeight(ConstTensorView gradient,
                                       ConstTensorView x,
                                       const NormState& state) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(bias_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(
      norm_internal::CheckState("LayerNorm", x, state.mean));
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
