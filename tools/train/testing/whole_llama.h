// For tests: a whole Llama model on one rank, without a pipeline and without
// sharded state.
//
//   auto model = *WholeLlama::Create(
//       ops, {.model = config, .length = 16}, tokens);
//   double loss = *model->Forward();
//   model->Backward();
#ifndef TESSERA_TOOLS_TRAIN_TESTING_WHOLE_LLAMA_H_
#define TESSERA_TOOLS_TRAIN_TESTING_WHOLE_LLAMA_H_

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor.h"
#include "pipeline/execute/stage.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/train/model/llama_stage.h"

namespace tessera::train {

class WholeLlama {
 public:
  // Weights are zeros in the layers' own memory, on the device of `ops`. `ops`
  // and `tokens` must outlive this.
  static absl::StatusOr<std::unique_ptr<WholeLlama>> Create(
      tensor_parallel::Ops& ops, const RunOptions& options,
      TokenSource& tokens);

  std::span<const ParameterWindow> windows() const {
    return layers_->windows();
  }

  // Forward computes the loss of micro-batch 0 and waits for it. After it call
  // Backward, BackwardInput and BackwardWeight, or Release.
  absl::StatusOr<double> Forward();
  absl::Status Backward();
  absl::Status BackwardInput();
  absl::Status BackwardWeight();
  void Release();
  absl::Status FinishGradients();
  void SetLossFactor(double factor) { passes_.loss_factor = factor; }
  void SetTargetFactor(double factor) { passes_.target_factor = factor; }

 private:
  WholeLlama(tensor_parallel::Ops& ops, TokenSource& tokens)
      : ops_(ops),
        passes_(tokens, weights_, tensor_parallel::TensorGroup(ops)) {}

  pipeline::BackwardPass PassOf(size_t window);

  tensor_parallel::Ops& ops_;
  ResidentWeights weights_;
  LlamaPasses passes_;
  std::unique_ptr<LlamaLayers> layers_;
  std::optional<Tensor> loss_;
  std::vector<std::unique_ptr<pipeline::Stage>> stages_;
  // Tensors between stages, and their gradients.
  std::vector<Tensor> tensors_, gradients_;
  std::vector<TensorView> views_, gradient_views_;
  std::vector<ConstTensorView> const_views_, const_gradient_views_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_TESTING_WHOLE_LLAMA_H_
