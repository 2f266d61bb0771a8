#include "tensor_parallel/blocks/attention.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/blocks/linear_places.h"
#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {
namespace {

absl::Status CheckHeld(const PooledTensor& tensor, const char* pass) {
  if (tensor.held()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Attention::", pass,
                   " of activations that the pass before it has not filled"));
}

}  // namespace

absl::StatusOr<Attention> Attention::Create(const TensorGroup& group,
                                            const ContextGroup& context,
                                            const AttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(AttentionCore core,
                           AttentionCore::Create(group, context, options));
  const FusedPartition& partition = core.partition();
  TESSERA_ASSIGN_OR_RETURN(
      auto qkv, ColumnParallelLinear::Create(
                    group, {.in = options.width,
                            .out = partition.size(),
                            .bias = options.qkv_bias,
                            .dtype = options.dtype,
                            .sequence_parallel = options.sequence_parallel,
                            .overlap_chunks = options.overlap_chunks,
                            .parts = partition.parts()}));
  TESSERA_ASSIGN_OR_RETURN(
      auto output, RowParallelLinear::Create(
                       group, {.in = options.heads * options.head_size,
                               .out = options.width,
                               .columns = partition.RangeOf(0, group.rank()),
                               .bias = options.output_bias,
                               .dtype = options.dtype,
                               .sequence_parallel = options.sequence_parallel,
                               .overlap_chunks = options.overlap_chunks}));
  TESSERA_RETURN_IF_ERROR(DescribeWeights(group, qkv));
  TESSERA_RETURN_IF_ERROR(DescribeWeights(group, output));
  return Attention(group, options, std::move(core), std::move(qkv),
                   std::move(output));
}

void Attention::AppendParameters(std::string_view prefix,
                                 std::vector<Parameter*>& parameters) {
  qkv_.weights().AppendParameters(ParameterName(prefix, "qkv"), parameters);
  output_.weights().AppendParameters(ParameterName(prefix, "output"),
                                     parameters);
}

absl::Status Attention::CheckValues() {
  TESSERA_RETURN_IF_ERROR(qkv_.weights().CheckValues());
  return output_.weights().CheckValues();
}

absl::Status Attention::CheckGradients() {
  TESSERA_RETURN_IF_ERROR(qkv_.weights().CheckGradients());
  return output_.weights().CheckGradients();
}

// The core's output as the input of the projection.
absl::StatusOr<ConstTensorView> Attention::OutputOf(
    const AttentionActivations& activations) const {
  const ConstTensorView output = activations.output.view();
  return output.Reshape({{output.shape()[0], output_.local_in()}});
}

absl::Status Attention::Forward(const TokenBatch& batch, ConstTensorView x,
                                TensorView y,
                                AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView qkv,
      memory.Reserve(options_.dtype,
                     {{batch.tokens.size(), qkv_.local_out()}}));
  TESSERA_RETURN_IF_ERROR(qkv_.Forward(batch.tokens, x, qkv));
  TESSERA_RETURN_IF_ERROR(core_.SetHeads(batch, qkv, activations));
  memory.Release();
  TESSERA_RETURN_IF_ERROR(core_.Attend(batch, activations));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output, OutputOf(activations));
  return output_.Forward(batch.tokens, output, y);
}

// Where the forward's result was not kept.
absl::Status Attention::AttendAgain(const TokenBatch& batch,
                                    AttentionActivations& activations) {
  return activations.output.held() ? absl::OkStatus()
                                   : core_.Attend(batch, activations);
}

absl::Status Attention::BackwardInput(const TokenBatch& batch,
                                      ConstTensorView y_gradient,
                                      TensorView x_gradient,
                                      AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckHeld(activations.query, "BackwardInput"));
  TESSERA_RETURN_IF_ERROR(AttendAgain(batch, activations));
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView output_gradient,
      memory.Reserve(options_.dtype,
                     {{batch.tokens.size(), output_.local_in()}}));
  TESSERA_RETURN_IF_ERROR(
      output_.BackwardInput(batch.tokens, y_gradient, output_gradient));
  TESSERA_RETURN_IF_ERROR(core_.Backward(batch, output_gradient, activations));
  memory.Release();
  return qkv_.BackwardInput(batch.tokens, activations.qkv_gradient.view(),
                            x_gradient);
}

absl::Status Attention::BackwardWeight(const TokenBatch& batch,
                                       ConstTensorView y_gradient,
                                       ConstTensorView x,
                                       AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(
      CheckHeld(activations.qkv_gradient, "BackwardWeight"));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output, OutputOf(activations));
  TESSERA_RETURN_IF_ERROR(
      output_.BackwardWeight(batch.tokens, y_gradient, output));
  activations.output.Release();
  TESSERA_RETURN_IF_ERROR(
      qkv_.BackwardWeight(batch.tokens, activations.qkv_gradient.view(), x));
  activations.Clear();
  return absl::OkStatus();
}

absl::Status Attention::Backward(const TokenBatch& batch,
                                 ConstTensorView y_gradient, ConstTensorView x,
                                 TensorView x_gradient,
                                 AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(CheckHeld(activations.query, "Backward"));
  TESSERA_RETURN_IF_ERROR(AttendAgain(batch, activations));
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView output_gradient,
      memory.Reserve(options_.dtype,
                     {{batch.tokens.size(), output_.local_in()}}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output, OutputOf(activations));
  TESSERA_RETURN_IF_ERROR(
      output_.Backward(batch.tokens, y_gradient, output, output_gradient));
  TESSERA_RETURN_IF_ERROR(core_.Backward(batch, output_gradient, activations));
  memory.Release();
  activations.output.Release();
  TESSERA_RETURN_IF_ERROR(qkv_.Backward(
      batch.tokens, activations.qkv_gradient.view(), x, x_gradient));
  activations.Clear();
  return absl::OkStatus();
}

absl::Status Attention::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(qkv_.FinishGradients());
  return output_.FinishGradients();
}

}  // namespace tessera::tensor_parallel
