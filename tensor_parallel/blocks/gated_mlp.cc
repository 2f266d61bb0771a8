#include "tensor_parallel/blocks/gated_mlp.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kGate = 0;
constexpr int64_t kUp = 1;

absl::Status CheckHeld(bool held, const char* pass) {
  if (held) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("GatedMlp::", pass,
                   " of activations that no forward has filled, or "
                   "whose backward is done"));
}

}  // namespace

absl::StatusOr<GatedMlp> GatedMlp::Create(const TensorGroup& group,
                                          const GatedMlpOptions& options) {
  if (options.width < 0 || options.hidden < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a gated MLP of width ", options.width, " and ",
                     options.hidden, " hidden units; 0 and more are allowed"));
  }
  TESSERA_ASSIGN_OR_RETURN(auto gate_up,
                           ColumnParallelLinear::Create(
                               group, {.in = options.width,
                                       .out = 2 * options.hidden,
                                       .bias = options.bias,
                                       .dtype = options.dtype,
                                       .fp8 = options.fp8,
                                       .parts = GatedMlpParts(options.hidden),
                                       .lora = options.lora}));
  TESSERA_ASSIGN_OR_RETURN(
      auto down,
      RowParallelLinear::Create(
          group, {.in = options.hidden,
                  .out = options.width,
                  .columns = gate_up.partition().RangeOf(kGate, group.rank()),
                  .bias = options.bias,
                  .dtype = options.dtype,
                  .fp8 = options.fp8,
                  .lora = options.lora}));
  return GatedMlp(group, options, std::move(gate_up), std::move(down));
}

void GatedMlp::AppendParameters(std::string_view prefix,
                                std::vector<Parameter*>& parameters) {
  gate_up_.AppendParameters(ParameterName(prefix, "gate_up"), parameters);
  down_.AppendParameters(ParameterName(prefix, "down"), parameters);
}

absl::Status GatedMlp::CheckValues() {
  TESSERA_RETURN_IF_ERROR(gate_up_.CheckValues());
  return down_.CheckValues();
}

absl::Status GatedMlp::CheckGradients() {
  TESSERA_RETURN_IF_ERROR(gate_up_.CheckGradients());
  return down_.CheckGradients();
}

absl::StatusOr<TensorView> GatedMlp::PartOf(TensorView gate_up,
                                            int64_t part) const {
  const IndexRange columns =
      gate_up_.partition().LocalRange(part, group_.rank());
  return gate_up.Narrow(1, columns.begin, columns.size());
}

absl::Status GatedMlp::ForwardActivations(const Partition& tokens,
                                          ConstTensorView x,
                                          GatedMlpActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  const int64_t rows = tokens.size();
  TESSERA_ASSIGN_OR_RETURN(const TensorView both,
                           activations.gate_up.Reserve(
                               options_.dtype, {{rows, gate_up_.local_out()}}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView product,
      activations.product.Reserve(options_.dtype, {{rows, down_.local_in()}}));
  TESSERA_RETURN_IF_ERROR(gate_up_.Forward(tokens, x, both));
  TESSERA_ASSIGN_OR_RETURN(const TensorView gate, PartOf(both, kGate));
  TESSERA_ASSIGN_OR_RETURN(const TensorView up, PartOf(both, kUp));
  return group_.ops().Run(op::Glu{options_.kind, gate, up, product});
}

absl::Status GatedMlp::Forward(const Partition& tokens, ConstTensorView x,
                               TensorView y, GatedMlpActivations& activations) {
  TESSERA_RETURN_IF_ERROR(ForwardActivations(tokens, x, activations));
  return ForwardOutput(tokens, y, activations);
}

absl::Status GatedMlp::ForwardOutput(const Partition& tokens, TensorView y,
                                     const GatedMlpActivations& activations) {
  TESSERA_RETURN_IF_ERROR(
      CheckHeld(activations.product.held(), "ForwardOutput"));
  return down_.Forward(tokens, activations.product.view(), y);
}

// Overwrites gate and up with their gradients.
absl::Status GatedMlp::TurnIntoGradient(ConstTensorView product_gradient,
                                        TensorView gate_up) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView gate, PartOf(gate_up, kGate));
  TESSERA_ASSIGN_OR_RETURN(const TensorView up, PartOf(gate_up, kUp));
  return group_.ops().Run(
      op::GluGradient{options_.kind, product_gradient, gate, up, gate, up});
}

absl::Status GatedMlp::BackwardInput(const Partition& tokens,
                                     ConstTensorView y_gradient,
                                     TensorView x_gradient,
                                     GatedMlpActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(
      CheckHeld(activations.product.held(), "BackwardInput"));
  PooledTensor memory(activations.product.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView product_gradient,
      memory.Reserve(options_.dtype, {{tokens.size(), down_.local_in()}}));
  TESSERA_RETURN_IF_ERROR(
      down_.BackwardInput(tokens, y_gradient, product_gradient));
  TESSERA_RETURN_IF_ERROR(
      TurnIntoGradient(product_gradient, activations.gate_up.view()));
  memory.Release();
  return gate_up_.BackwardInput(tokens, activations.gate_up.view(), x_gradient);
}

absl::Status GatedMlp::BackwardWeight(const Partition& tokens,
                                      ConstTensorView y_gradient,
                                      ConstTensorView x,
                                      GatedMlpActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(
      CheckHeld(activations.product.held(), "BackwardWeight"));
  TESSERA_RETURN_IF_ERROR(
      down_.BackwardWeight(tokens, y_gradient, activations.product.view()));
  activations.product.Release();
  TESSERA_RETURN_IF_ERROR(
      gate_up_.BackwardWeight(tokens, activations.gate_up.view(), x));
  activations.Clear();
  return absl::OkStatus();
}

absl::Status GatedMlp::Backward(const Partition& tokens,
                                ConstTensorView y_gradient, ConstTensorView x,
                                TensorView x_gradient,
                                GatedMlpActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(CheckHeld(activations.product.held(), "Backward"));
  PooledTensor memory(activations.product.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView product_gradient,
      memory.Reserve(options_.dtype, {{tokens.size(), down_.local_in()}}));
  TESSERA_RETURN_IF_ERROR(down_.Backward(
      tokens, y_gradient, activations.product.view(), product_gradient));
  activations.product.Release();
  TESSERA_RETURN_IF_ERROR(
      TurnIntoGradient(product_gradient, activations.gate_up.view()));
  memory.Release();
  TESSERA_RETURN_IF_ERROR(
      gate_up_.Backward(tokens, activations.gate_up.view(), x, x_gradient));
  activations.Clear();
  return absl::OkStatus();
}

absl::Status GatedMlp::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(gate_up_.FinishGradients());
  return down_.FinishGradients();
}

}  // namespace tessera::tensor_parallel
