// For tests: a stack of layers, each a pipeline stage, and its gradients by a
// plain loop.
//
//   const StackShape shape{.widths = {4, 6, 3}, .rows = 2, .microbatches = 5};
//   LayerStage<double> stage(shape, /*stage=*/1);
//   const Reference<double> expected = RunSequentially<double>(shape);
//
// Layer s maps rows of width widths[s] to tanh(x W + b) of width widths[s + 1].
// The loss is half the squared distance from a target. All values are functions
// of their indices, so that every rank has the same.
#ifndef TESSERA_PIPELINE_EXECUTE_LAYER_STACK_H_
#define TESSERA_PIPELINE_EXECUTE_LAYER_STACK_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/execute/stage.h"

namespace tessera::pipeline {

struct StackShape {
  std::vector<int64_t> widths;  // One more than there are layers.
  int64_t rows = 2;
  int64_t microbatches = 1;

  int64_t layers() const { return static_cast<int64_t>(widths.size()) - 1; }
};

// Uneven widths for so many layers.
StackShape ShapeOf(int64_t layers, int64_t microbatches);

// Weights [in, out] and bias [out], and their gradients.
template <typename T>
struct Layer {
  std::vector<T> weight, bias, weight_gradient, bias_gradient;
};

template <typename T>
class LayerStage : public Stage {
 public:
  LayerStage(const StackShape& shape, int32_t stage);

  absl::StatusOr<TensorSpec> OutputSpec(const TensorSpec* input) override;
  absl::Status Forward(const ForwardPass& pass) override;
  absl::Status BackwardInput(const BackwardPass& pass) override;
  absl::Status BackwardWeight(const BackwardPass& pass) override;
  void Release(int32_t microbatch) override;
  absl::StatusOr<std::vector<TensorView>> Gradients() override;
  absl::StatusOr<TensorView> TiedGradient(std::string_view name) override;
  absl::Status Unshard() override;
  absl::Status Reshard() override;
  absl::Status ReduceGradient() override;
  bool KeepsInput(int32_t) const override { return keeps_input; }

  bool keeps_input = false;

  const Layer<T>& layer() const { return layer_; }
  void ZeroGradients();
  // Micro-batches of which something is kept.
  size_t kept() const { return kept_.size(); }
  // "unshard", "reshard", "reduce", in their order.
  const std::vector<std::string>& hooks() const { return hooks_; }

 private:
  struct Kept {
    // Null for the first stage, and if stages keep their own input.
    std::vector<T> input;
    std::vector<T> output;    // tanh(...).
    std::vector<T> gradient;  // Of what tanh took, from BackwardInput on.
  };

  const StackShape shape_;
  const int32_t stage_;
  Layer<T> layer_;
  std::map<int32_t, Kept> kept_;
  std::vector<std::string> hooks_;
};

template <typename T>
struct Reference {
  std::vector<Layer<T>> layers;
  std::vector<double> losses;
  double loss = 0;
};

// All micro-batches in turn through all layers, and back: gradients are of the
// mean over the micro-batches.
template <typename T>
Reference<T> RunSequentially(const StackShape& shape);

// The largest distance of a gradient from the reference's, relative to the
// largest gradient of the layer.
template <typename T>
double LargestError(const Layer<T>& layer, const Layer<T>& expected);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_LAYER_STACK_H_
