#include "tensor_parallel/layers/column_parallel_linear.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

std::vector<FusedPart> PartsOf(const ColumnParallelOptions& options) {
  if (!options.parts.empty()) return options.parts;
  return {FusedPart{.size = options.out}};
}

absl::Status CheckSizes(const ColumnParallelOptions& options,
                        const FusedPartition& partition) {
  if (options.in < 0 || options.out < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a linear layer of ", options.in, " inputs and ",
                     options.out, " outputs; 0 and more are allowed"));
  }
  if (partition.size() == options.out) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a linear layer of ", options.out,
                   " outputs whose parts "
                   "have ",
                   partition.size(), "; they should add up"));
}

}  // namespace

absl::StatusOr<ColumnParallelLinear> ColumnParallelLinear::Create(
    const TensorGroup& group, const ColumnParallelOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      FusedPartition partition,
      FusedPartition::Create(PartsOf(options), group.size()));
  TESSERA_RETURN_IF_ERROR(CheckSizes(options, partition));
  TESSERA_ASSIGN_OR_RETURN(
      LinearWeights weights,
      LinearWeights::Create({.in = options.in,
                             .rows = partition.RangesOf(group.rank()),
                             .columns = {0, options.in},
                             .bias = options.bias,
                             .dtype = options.dtype}));
  ColumnParallelLinear layer(group, options, std::move(partition),
                             std::move(weights));
  TESSERA_RETURN_IF_ERROR(layer.JoinSharers());
  return layer;
}

absl::Status ColumnParallelLinear::JoinSharers() {
  const std::vector<FusedPart>& parts = partition_.parts();
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t sharers = group_.size() / parts[part].groups;
    if (!parts[part].replicated || sharers == 1) continue;
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<collectives::Communicator> communicator,
        group_.communicator()->Split(group_.rank() / sharers, group_.rank(),
                                     absl::StrCat("sharers of part ", part)));
    sharers_.push_back({part, std::move(communicator)});
  }
  return absl::OkStatus();
}

absl::StatusOr<ConstTensorView> ColumnParallelLinear::AllTokens(
    const Partition& tokens, ConstTensorView x) {
  if (!options_.sequence_parallel) return x;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_x_.Get(x.dtype(), {{tokens.size(), options_.in}}));
  TESSERA_RETURN_IF_ERROR(group_.GatherTokens(tokens, x, all));
  return ConstTensorView(all);
}

absl::Status ColumnParallelLinear::Forward(const Partition& tokens,
                                           ConstTensorView x, TensorView y) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all, AllTokens(tokens, x));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Gemm({.transpose_b = true}, all, weights_.weight(), y));
  return weights_.has_bias() ? group_.ops().AddBias(weights_.bias(), y)
                             : absl::OkStatus();
}

// x_gradient = the sum over ranks of y_gradient w.
absl::StatusOr<Pending> ColumnParallelLinear::StartBackwardInput(
    const Partition& tokens, ConstTensorView y_gradient,
    TensorView x_gradient) {
  if (!options_.sequence_parallel) {
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Gemm({}, y_gradient, weights_.weight(), x_gradient));
    return group_.StartSumOver(x_gradient);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView all,
      all_x_gradient_.Get(x_gradient.dtype(), {{tokens.size(), options_.in}}));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Gemm({}, y_gradient, weights_.weight(), all));
  return group_.StartScatterSums(tokens, all, x_gradient);
}

absl::Status ColumnParallelLinear::BackwardInput(const Partition& tokens,
                                                 ConstTensorView y_gradient,
                                                 TensorView x_gradient) {
  TESSERA_ASSIGN_OR_RETURN(Pending sum,
                           StartBackwardInput(tokens, y_gradient, x_gradient));
  return sum.Wait();
}

absl::Status ColumnParallelLinear::AddWeightGradients(
    ConstTensorView y_gradient, ConstTensorView x) {
  TESSERA_RETURN_IF_ERROR(group_.ops().Gemm({.transpose_a = true, .beta = 1},
                                            y_gradient, x,
                                            weights_.weight_gradient()));
  return weights_.has_bias()
             ? group_.ops().SumRows(y_gradient, weights_.bias_gradient())
             : absl::OkStatus();
}

absl::Status ColumnParallelLinear::BackwardWeight(const Partition& tokens,
                                                  ConstTensorView y_gradient,
                                                  ConstTensorView x) {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView all, AllTokens(tokens, x));
  return AddWeightGradients(y_gradient, all);
}

absl::Status ColumnParallelLinear::Backward(const Partition& tokens,
                                            ConstTensorView y_gradient,
                                            ConstTensorView x,
                                            TensorView x_gradient) {
  // x is gathered while the gradient of x is computed, and that is summed while
  // the gradient of the weights is.
  ConstTensorView all = x;
  Pending gathered;
  if (options_.sequence_parallel) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView to,
        all_x_.Get(x.dtype(), {{tokens.size(), options_.in}}));
    TESSERA_ASSIGN_OR_RETURN(gathered, group_.StartGatherTokens(tokens, x, to));
    all = to;
  }
  absl::StatusOr<Pending> sum =
      StartBackwardInput(tokens, y_gradient, x_gradient);
  // What was started must end before its buffers may go, error or not.
  absl::Status status = gathered.Wait();
  if (status.ok() && sum.ok()) status = AddWeightGradients(y_gradient, all);
  if (!sum.ok()) return sum.status();
  status.Update(sum->Wait());
  return status;
}

absl::Status ColumnParallelLinear::FinishGradients() {
  for (const Sharers& sharers : sharers_) {
    const IndexRange rows = partition_.LocalRange(
        static_cast<int64_t>(sharers.part), group_.rank());
    const TensorGroup group(group_.ops(), sharers.communicator.get());
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView weight,
        weights_.weight_gradient().Narrow(0, rows.begin, rows.size()));
    TESSERA_RETURN_IF_ERROR(group.SumOver(weight));
    if (!weights_.has_bias()) continue;
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView bias,
        weights_.bias_gradient().Narrow(0, rows.begin, rows.size()));
    TESSERA_RETURN_IF_ERROR(group.SumOver(bias));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
