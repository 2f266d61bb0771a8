#include "tensor_parallel/layers/row_parallel_linear.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

absl::StatusOr<RowParallelLinear> RowParallelLinear::Create(
    const TensorGroup& group, const RowParallelOptions& options) {
  const IndexRange columns = options.columns;
  if (options.in < 0 || options.out < 0 || columns.begin < 0 ||
      columns.end < columns.begin || columns.end > options.in) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a linear layer of ", options.in, " inputs, of which rank ",
        group.rank(), " has ", columns.begin, " to ", columns.end, ", and ",
        options.out, " outputs; give sizes from 0 on, and inputs within them"));
  }
  TESSERA_ASSIGN_OR_RETURN(LinearWeights weights,
                           LinearWeights::Create({.in = options.in,
                                                  .rows = {{0, options.out}},
                                                  .columns = columns,
                                                  .bias = options.bias,
                                                  .dtype = options.dtype}));
  return RowParallelLinear(group, options, std::move(weights));
}

absl::Status RowParallelLinear::Forward(const Partition& tokens,
                                        ConstTensorView x, TensorView y) {
  if (options_.sequence_parallel) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView all,
        all_y_.Get(y.dtype(), {{tokens.size(), options_.out}}));
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Gemm({.transpose_b = true}, x, weights_.weight(), all));
    TESSERA_RETURN_IF_ERROR(group_.ScatterSums(tokens, all, y));
  } else {
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Gemm({.transpose_b = true}, x, weights_.weight(), y));
    TESSERA_RETURN_IF_ERROR(group_.SumOver(y));
  }
  return weights_.has_bias() ? group_.ops().AddBias(weights_.bias(), y)
                             : absl::OkStatus();
}

absl::StatusOr<ConstTensorView> RowParallelLinear::AllTokens(
    const Partition& tokens, ConstTensorView y_gradient) {
  if (!options_.sequence_parallel) return y_gradient;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_y_.Get(y_gradient.dtype(), {{tokens.size(), options_.out}}));
  TESSERA_RETURN_IF_ERROR(group_.GatherTokens(tokens, y_gradient, all));
  return ConstTensorView(all);
}

absl::Status RowParallelLinear::BackwardInput(const Partition& tokens,
                                              ConstTensorView y_gradient,
                                              TensorView x_gradient) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all,
                           AllTokens(tokens, y_gradient));
  return group_.ops().Gemm({}, all, weights_.weight(), x_gradient);
}

absl::Status RowParallelLinear::AddWeightGradients(ConstTensorView all,
                                                   ConstTensorView mine,
                                                   ConstTensorView x) {
  TESSERA_RETURN_IF_ERROR(group_.ops().Gemm(
      {.transpose_a = true, .beta = 1}, all, x, weights_.weight_gradient()));
  return weights_.has_bias()
             ? group_.ops().SumRows(mine, weights_.bias_gradient())
             : absl::OkStatus();
}

absl::Status RowParallelLinear::BackwardWeight(const Partition& tokens,
                                               ConstTensorView y_gradient,
                                               ConstTensorView x) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all,
                           AllTokens(tokens, y_gradient));
  return AddWeightGradients(all, y_gradient, x);
}

absl::Status RowParallelLinear::Backward(const Partition& tokens,
                                         ConstTensorView y_gradient,
                                         ConstTensorView x,
                                         TensorView x_gradient) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all,
                           AllTokens(tokens, y_gradient));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Gemm({}, all, weights_.weight(), x_gradient));
  return AddWeightGradients(all, y_gradient, x);
}

absl::Status RowParallelLinear::FinishGradients() {
  if (!options_.sequence_parallel || !weights_.has_bias()) {
    return absl::OkStatus();
  }
  return group_.SumOver(weights_.bias_gradient());
}

}  // namespace tessera::tensor_parallel
