#include "tensor_parallel/layers/rms_norm.h"

#include <cstdint>
#include <utility>

#include "base/status_macros.h"
#include "tensor_parallel/layers/norm_parameter.h"

namespace tessera::tensor_parallel {

absl::StatusOr<RmsNorm> RmsNorm::Create(const TensorGroup& group,
                                        const NormOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(Parameter weight, norm_internal::CreateWeight(
                                                 group, options, "weight", 1));
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
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows,
                           norm_internal::RowsOf("RmsNorm", x));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView inverse,
      state.inverse.Reserve(GradientDType(options_.dtype), {{rows}}));
  return group_.ops().RmsNorm(options_.epsilon, x, weight_.value(), y, inverse);
}

absl::Status RmsNorm::BackwardInput(ConstTensorView gradient, ConstTensorView x,
                                    const NormState& state,
                                    TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_RETURN_IF_ERROR(
      norm_internal::CheckState("RmsNorm", x, state.inverse));
  return group_.ops().RmsNormInputGradient(gradient, x, weight_.value(),
                                           state.inverse.view(), x_gradient);
}

absl::Status RmsNorm::BackwardWeight(ConstTensorView gradient,
                                     ConstTensorView x,
                                     const NormState& state) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(
      norm_internal::CheckState("RmsNorm", x, state.inverse));
  return group_.ops().RmsNormWeightGradient(gradient, x, state.inverse.view(),
                                            weight_.gradient());
}

absl::Status RmsNorm::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  return options_.sequence_parallel ? group_.SumOver(weight_.gradient())
                                    : absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
