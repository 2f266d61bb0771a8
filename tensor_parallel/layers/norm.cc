#include "tensor_parallel/layers/norm.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace {

// The rows of x, which must have two dimensions.
absl::StatusOr<int64_t> RowsOf(const ConstTensorView& x) {
  if (x.rank() == 2) return x.shape()[0];
  return absl::InvalidArgumentError(
      absl::StrCat("RmsNorm of a tensor of ", x.rank(),
                   " dimensions; give [tokens, width]"));
}

// FailedPrecondition if the state was not set by a forward with the same rows
// as x.
absl::Status CheckState(const ConstTensorView& x,
                        const PooledTensor& statistics) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows, RowsOf(x));
  if (statistics.held() && statistics.view().shape()[0] == rows) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the backward of RmsNorm for ", rows, " tokens, with the state of ",
      statistics.held()
          ? absl::StrCat("a forward of ", statistics.view().shape()[0])
          : std::string("no forward")));
}

}  // namespace

absl::StatusOr<RmsNorm> RmsNorm::Create(const TensorGroup& group,
                                        const NormOptions& options) {
  // The comparison also rejects NaN.
  if (options.width < 0 || !(options.epsilon >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a norm of width ", options.width, " and epsilon ",
                     options.epsilon, "; 0 and more are allowed"));
  }
  if (options.columns.has_value() &&
      (options.columns->begin < 0 || options.columns->end > options.width ||
       options.width < 1 || options.copies < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "columns ", options.columns->begin, " to ", options.columns->end,
        " of a norm of width ", options.width, ", on ", options.copies,
        " ranks; give columns within the width, on 1 rank or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      Parameter weight,
      Parameter::Create(group,
                        {.name = "weight",
                         .shape = {options.width},
                         .rows = {{{0, options.width}, group.rank() == 0}},
                         .replicated = true,
                         .dtype = options.dtype}));
  if (weight.has_value()) TESSERA_RETURN_IF_ERROR(weight.Fill(group.ops(), 1));
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
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows, RowsOf(x));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView inverse,
      state.inverse.Reserve(GradientDType(options_.dtype), {{rows}}));
  if (!options_.columns.has_value()) {
    return group_.ops().Run(
        op::RmsNorm{options_.epsilon, x, weight_.value(), y, inverse});
  }
  PooledTensor memory(state.inverse.pool());
  TESSERA_ASSIGN_OR_RETURN(const TensorView sums,
                           memory.Reserve(inverse.dtype(), {{rows}}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView weights, Weights());
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::RmsNormSums{x, sums}));
  TESSERA_RETURN_IF_ERROR(group_.SumOver(sums));
  return group_.ops().Run(op::RmsNormOfSums{options_.epsilon,
                                            options_.width * options_.copies, x,
                                            weights, sums, y, inverse});
}

absl::Status RmsNorm::BackwardInput(ConstTensorView gradient, ConstTensorView x,
                                    const NormState& state,
                                    TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_RETURN_IF_ERROR(CheckState(x, state.inverse));
  const TensorView inverse = state.inverse.view();
  if (!options_.columns.has_value()) {
    return group_.ops().Run(op::RmsNormInputGradient{
        gradient, x, weight_.value(), inverse, x_gradient});
  }
  PooledTensor memory(state.inverse.pool());
  TESSERA_ASSIGN_OR_RETURN(const TensorView sums,
                           memory.Reserve(inverse.dtype(), inverse.shape()));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView weights, Weights());
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(
      op::RmsNormGradientSums{gradient, x, weights, inverse, sums}));
  TESSERA_RETURN_IF_ERROR(group_.SumOver(sums));
  return group_.ops().Run(
      op::RmsNormInputGradientOfSums{options_.width * options_.copies, gradient,
                                     x, weights, inverse, sums, x_gradient});
}

absl::Status RmsNorm::AddForward(ConstTensorView residual, TensorView x,
                                 TensorView y, NormState& state) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_ASSIGN_OR_RETURN(const int64_t rows, RowsOf(x));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView inverse,
      state.inverse.Reserve(GradientDType(options_.dtype), {{rows}}));
  return group_.ops().Run(op::AddRmsNorm{options_.epsilon, residual,
                                         weight_.value(), x, y, inverse});
}

absl::Status RmsNorm::AddBackwardInput(ConstTensorView gradient,
                                       ConstTensorView x,
                                       const NormState& state,
                                       ConstTensorView residual_gradient,
                                       TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_RETURN_IF_ERROR(CheckState(x, state.inverse));
  return group_.ops().Run(op::AddRmsNormInputGradient{
      gradient, x, weight_.value(), state.inverse.view(), residual_gradient,
      x_gradient});
}

absl::Status RmsNorm::AddBackward(ConstTensorView gradient, ConstTensorView x,
                                  const NormState& state,
                                  ConstTensorView residual_gradient,
                                  TensorView x_gradient) {
  if (!weight_.trainable()) {
    return AddBackwardInput(gradient, x, state, residual_gradient, x_gradient);
  }
  TESSERA_RETURN_IF_ERROR(weight_.CheckValue());
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  TESSERA_RETURN_IF_ERROR(CheckState(x, state.inverse));
  return group_.ops().Run(op::AddRmsNormGradients{
      gradient, x, weight_.value(), state.inverse.view(), residual_gradient,
      x_gradient, weight_.gradient()});
}

absl::Status RmsNorm::BackwardWeight(ConstTensorView gradient,
                                     ConstTensorView x,
                                     const NormState& state) {
  if (!weight_.trainable()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView sum,
      weight_.gradient().Narrow(0, columns().begin, columns().size()));
  return WeightGradient(gradient, x, state, sum);
}

absl::Status RmsNorm::WeightGradient(ConstTensorView gradient,
                                     ConstTensorView x, const NormState& state,
                                     TensorView sum) {
  TESSERA_RETURN_IF_ERROR(CheckState(x, state.inverse));
  return group_.ops().Run(
      op::RmsNormWeightGradient{gradient, x, state.inverse.view(), sum});
}

absl::Status RmsNorm::FinishGradients() {
  if (!weight_.trainable()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(weight_.CheckGradient());
  return options_.rows_are_heads || options_.columns.has_value() ||
                 group_.sequence_parallel()
             ? group_.SumOver(weight_.gradient())
             : absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
