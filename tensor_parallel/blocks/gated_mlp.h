// GatedMlp: y = down(act(gate x) * up x), the feed-forward half of a Llama
// block (Shazeer, arXiv 2002.05202), over ranks that share its hidden units.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_GATED_MLP_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_GATED_MLP_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/linear_products.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/glu.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct GatedMlpOptions {
  int64_t width = 0;
  int64_t hidden = 0;  // Over all ranks.
  bool bias = false;   // For all three projections.
  GluKind kind = GluKind::kSwiGlu;
  DType dtype = DType::kF32;
  // The fp8 scales of the projections (layers/linear_products.h), which count
  // as two layers; null: no fp8.
  std::shared_ptr<Fp8Scaling> fp8 = nullptr;
  LoraOptions lora = {};  // For all three projections.
};

// The activations of a micro-batch that are kept from forward to backward.
struct GatedMlpActivations : TensorParts<GatedMlpActivations> {
  explicit GatedMlpActivations(TensorPool& pool)
      : gate_up(pool), product(pool) {}

  auto parts() { return std::tie(gate_up, product); }

  PooledTensor gate_up;  // [tokens, its gate and up]; then its gradient.
  PooledTensor product;  // [tokens, its hidden]
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto mlp, GatedMlp::Create(group, {.width = 512, .hidden = 1376}));
//   GatedMlpActivations activations(pool);            // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(mlp.Forward(tokens, x, y, activations));
//   TESSERA_RETURN_IF_ERROR(mlp.BackwardInput(tokens, dy, dx, activations));
//   TESSERA_RETURN_IF_ERROR(mlp.BackwardWeight(tokens, dy, x, activations));
//   TESSERA_RETURN_IF_ERROR(mlp.FinishGradients());   // once a step
//
// x, y and their gradients are [tokens, width] of one dtype, the same on every
// rank; under sequence parallelism they have only the rank's tokens. The caller
// applies the norm and the residual. Calls are collectives of the group.
// Weights:
//
//   gate_up.weight   [2 hidden, width]   gate_proj, then up_proj of Llama
//   down.weight      [width, hidden]     down_proj
class GatedMlp {
 public:
  // A collective. InvalidArgument if a size is negative or the type is not f64,
  // f32, bf16 or f16.
  static absl::StatusOr<GatedMlp> Create(const TensorGroup& group,
                                         const GatedMlpOptions& options);

  ColumnParallelLinear& gate_up() { return gate_up_; }
  RowParallelLinear& down() { return down_; }
  // Appends "prefix.gate_up.weight" and so on. The pointers are valid until the
  // layer is moved.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // FailedPrecondition, here and below, if required weights or gradients are
  // released, or required activations are missing.
  absl::Status Forward(const Partition& tokens, ConstTensorView x, TensorView y,
                       GatedMlpActivations& activations);
  // ForwardActivations computes only the activations, and ForwardOutput
  // computes y from them.
  absl::Status ForwardActivations(const Partition& tokens, ConstTensorView x,
                                  GatedMlpActivations& activations);
  absl::Status ForwardOutput(const Partition& tokens, TensorView y,
                             const GatedMlpActivations& activations);
  // Stores the tensors that BackwardWeight needs in the activations.
  // BackwardWeight adds to the gradients of the weights.
  absl::Status BackwardInput(const Partition& tokens,
                             ConstTensorView y_gradient, TensorView x_gradient,
                             GatedMlpActivations& activations);
  absl::Status BackwardWeight(const Partition& tokens,
                              ConstTensorView y_gradient, ConstTensorView x,
                              GatedMlpActivations& activations);
  // Both passes; overlaps the computation of weight gradients with the
  // communication of input gradients.
  absl::Status Backward(const Partition& tokens, ConstTensorView y_gradient,
                        ConstTensorView x, TensorView x_gradient,
                        GatedMlpActivations& activations);

  absl::Status FinishGradients();

 private:
  GatedMlp(const TensorGroup& group, const GatedMlpOptions& options,
           ColumnParallelLinear gate_up, RowParallelLinear down)
      : group_(group),
        options_(options),
        gate_up_(std::move(gate_up)),
        down_(std::move(down)) {}

  absl::Status CheckValues();
  absl::Status CheckGradients();
  absl::StatusOr<TensorView> PartOf(TensorView gate_up, int64_t part) const;
  absl::Status TurnIntoGradient(ConstTensorView product_gradient,
                                TensorView gate_up);

  TensorGroup group_;
  GatedMlpOptions options_;
  ColumnParallelLinear gate_up_;
  RowParallelLinear down_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_GATED_MLP_H_
