// LayerNorm: y = (x - mean) / sqrt(variance + epsilon) * weight + bias, by
// token (Ba, Kiros and Hinton, arXiv 1607.06450), on ranks that share weight
// and bias. Otherwise as RmsNorm.
//
//   TESSERA_ASSIGN_OR_RETURN(auto norm,
//                            LayerNorm::Create(group, {.width = 512}));
//   TESSERA_RETURN_IF_ERROR(norm.Forward(x, y, state));
//
// The weight begins with ones, the bias with zeros.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LAYER_NORM_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LAYER_NORM_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/norm_options.h"
#include "tensor_parallel/layers/norm_state.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

class LayerNorm {
 public:
  // Refuses as RmsNorm.
  static absl::StatusOr<LayerNorm> Create(const TensorGroup& group,
                                          const NormOptions& options);

  Parameter& weight() { return weight_; }
  Parameter& bias() { return bias_; }
  // Appends "prefix.weight" and "prefix.bias".
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  absl::Status Forward(ConstTensorView x, TensorView y, NormState& state);
  absl::Status BackwardInput(ConstTensorView gradient, ConstTensorView x,
                             const NormState& state, TensorView x_gradient);
  // Adds to the gradients of weight and bias.
  absl::Status BackwardWeight(ConstTensorView gradient, ConstTensorView x,
                              const NormState& state);

  absl::Status FinishGradients();

 private:
  LayerNorm(const TensorGroup& group, const NormOptions& options,
            Parameter weight, Parameter bias)
      : group_(group),
        options_(options),
        weight_(std::move(weight)),
        bias_(std::move(bias)) {}

  TensorGroup group_;
  NormOptions options_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LAYER_NORM_H_
