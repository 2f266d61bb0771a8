#include "tensor_parallel/layers/row_parallel_linear.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/chunked_sums.h"
#include "tensor_parallel/layers/token_chunks.h"

namespace tessera::tensor_parallel {

absl::StatusOr<RowParallelLinear> RowParallelLinear::Create(
    const TensorGroup& group, const RowParallelOptions& options) {
  const IndexRange columns = options.columns;
  if (options.in < 0 || options.out < 0 || options.overlap_chunks < 0 ||
      columns.begin < 0 || columns.end < columns.begin ||
      columns.end > options.in) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a linear layer of ", options.in, " inputs, of which rank ",
        group.rank(), " has ", columns.begin, " to ", columns.end, ", and ",
        options.out, " outputs, in ", options.overlap_chunks,
        " chunks; give sizes from 0 on, and inputs within them"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      LinearWeights weights,
      LinearWeights::Create({.in = options.in,
                             .rows = {{0, options.out}},
                             .columns = columns,
                             .bias = options.bias,
                             .dtype = options.dtype,
                             .has_memory = group.has_weight_memory()}));
  TESSERA_RETURN_IF_ERROR(
      weights.Describe({.out = options.out,
                        .bias_replicated = true,
                        .bias_primary = group.rank() == 0}));
  return RowParallelLinear(group, options, std::move(weights));
}

// y = the sum over ranks of x w^T.
absl::Status RowParallelLinear::Multiply(const Partition& tokens,
                                         ConstTensorView x, TensorView y) {
  TESSERA_RETURN_IF_ERROR(CheckTokenRows("x", x, tokens.size()));
  const auto multiply = [&](IndexRange some, TensorView rows) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                             x.Narrow(0, some.begin, some.size()));
    return group_.ops().Gemm({.transpose_b = true}, part, weights_.weight(),
                             rows);
  };
  if (!options_.sequence_parallel) {
    TESSERA_RETURN_IF_ERROR(CheckTokenRows("y", y, tokens.size()));
    TESSERA_ASSIGN_OR_RETURN(
        ChunkedSums sums,
        ChunkedSums::SumOver(group_,
                             std::max<int64_t>(1, options_.overlap_chunks), y,
                             multiply));
    return sums.Wait();
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_y_.Get(y.dtype(), {{tokens.size(), options_.out}}));
  TESSERA_ASSIGN_OR_RETURN(
      ChunkedSums sums,
      ChunkedSums::Scatter(group_, TokenChunks(tokens, options_.overlap_chunks),
                           all, y, multiply));
  return sums.Wait();
}

absl::Status RowParallelLinear::Forward(const Partition& tokens,
                                        ConstTensorView x, TensorView y) {
  TESSERA_RETURN_IF_ERROR(weights_.CheckValues());
  TESSERA_RETURN_IF_ERROR(Multiply(tokens, x, y));
  return weights_.has_bias() ? group_.ops().AddBias(weights_.bias(), y)
                             : absl::OkStatus();
}

absl::StatusOr<ChunkedGather> RowParallelLinear::StartGather(
    const Partition& tokens, ConstTensorView y_gradient) {
  if (!options_.sequence_parallel) {
    TESSERA_RETURN_IF_ERROR(
        CheckTokenRows("the gradient of y", y_gradient, tokens.size()));
    return ChunkedGather::Here(y_gradient);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_y_.Get(y_gradient.dtype(), {{tokens.size(), options_.out}}));
  return ChunkedGather::Start(
      group_, TokenChunks(tokens, options_.overlap_chunks), y_gradient, all);
}

absl::Status RowParallelLinear::SetInputGradient(IndexRange tokens,
                                                 ConstTensorView y_gradient,
                                                 TensorView x_gradient) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                           x_gradient.Narrow(0, tokens.begin, tokens.size()));
  return group_.ops().Gemm({}, y_gradient, weights_.weight(), part);
}

absl::Status RowParallelLinear::AddWeightGradient(IndexRange tokens,
                                                  ConstTensorView y_gradient,
                                                  ConstTensorView x) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                           x.Narrow(0, tokens.begin, tokens.size()));
  return group_.ops().Gemm({.transpose_a = true, .beta = 1}, y_gradient, part,
                           weights_.weight_gradient());
}

// Of this rank's tokens: FinishGradients adds up those of all.
absl::Status RowParallelLinear::AddBiasGradient(ConstTensorView y_gradient) {
  return weights_.has_bias()
             ? group_.ops().SumRows(y_gradient, weights_.bias_gradient())
             : absl::OkStatus();
}

absl::Status RowParallelLinear::BackwardInput(const Partition& tokens,
                                              ConstTensorView y_gradient,
                                              TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(weights_.CheckValues());
  TESSERA_RETURN_IF_ERROR(
      CheckTokenRows("the gradient of x", x_gradient, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather,
                           StartGather(tokens, y_gradient));
  return gather.ForEach([&](IndexRange some, ConstTensorView rows) {
    return SetInputGradient(some, rows, x_gradient);
  });
}

absl::Status RowParallelLinear::BackwardWeight(const Partition& tokens,
                                               ConstTensorView y_gradient,
                                               ConstTensorView x) {
  TESSERA_RETURN_IF_ERROR(weights_.CheckGradients());
  TESSERA_RETURN_IF_ERROR(CheckTokenRows("x", x, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather,
                           StartGather(tokens, y_gradient));
  TESSERA_RETURN_IF_ERROR(
      gather.ForEach([&](IndexRange some, ConstTensorView rows) {
        return AddWeightGradient(some, rows, x);
      }));
  return AddBiasGradient(y_gradient);
}

absl::Status RowParallelLinear::Backward(const Partition& tokens,
                                         ConstTensorView y_gradient,
                                         ConstTensorView x,
                                         TensorView x_gradient) {
  TESSERA_RETURN_IF_ERROR(weights_.CheckValues());
  TESSERA_RETURN_IF_ERROR(weights_.CheckGradients());
  TESSERA_RETURN_IF_ERROR(CheckTokenRows("x", x, tokens.size()));
  TESSERA_RETURN_IF_ERROR(
      CheckTokenRows("the gradient of x", x_gradient, tokens.size()));
  TESSERA_ASSIGN_OR_RETURN(ChunkedGather gather,
                           StartGather(tokens, y_gradient));
  TESSERA_RETURN_IF_ERROR(
      gather.ForEach([&](IndexRange some, ConstTensorView rows) {
        absl::Status status = SetInputGradient(some, rows, x_gradient);
        if (status.ok()) status = AddWeightGradient(some, rows, x);
        return status;
      }));
  return AddBiasGradient(y_gradient);
}

absl::Status RowParallelLinear::FinishGradients() {
  if (!options_.sequence_parallel || !weights_.has_bias()) {
    return absl::OkStatus();
  }
  return group_.SumOver(weights_.bias_gradient());
}

}  // namespace tessera::tensor_parallel
