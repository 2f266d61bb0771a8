// RMS normalisation of tokens over the ranks of a tensor group.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_NORM_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_NORM_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {

struct NormOptions {
  int64_t width = 0;
  double epsilon = 1e-5;
  DType dtype = DType::kF32;
  // Each rank has some of the rows, be they tokens or heads: gradients of
  // weights are to be summed.
  bool sequence_parallel = false;
};

// The statistics that a norm keeps from a forward to its backward.
struct NormState {
  // `pool` must outlive the state.
  explicit NormState(TensorPool& pool) : inverse(pool) {}

  int64_t bytes() const { return inverse.bytes(); }
  void Clear() { inverse.Release(); }

  PooledTensor inverse;  // 1 / the root. [rows], statistics.
};

// RmsNorm: y = x / sqrt(mean(x^2) + epsilon) * weight, by token (Zhang and
// Sennrich, arXiv 1910.07467), on ranks that share the weight.
//
//   TESSERA_ASSIGN_OR_RETURN(auto norm,
//                            RmsNorm::Create(group, {.width = 512}));
//   NormState state(pool);                            // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(norm.Forward(x, y, state));
//   TESSERA_RETURN_IF_ERROR(norm.BackwardInput(dy, x, state, dx));
//   TESSERA_RETURN_IF_ERROR(norm.BackwardWeight(dy, x, state));
//   TESSERA_RETURN_IF_ERROR(norm.FinishGradients());  // once a step
//
// x, y and their gradients are [tokens, width] of one dtype: all tokens, the
// same on every rank, or under sequence parallelism those of the rank. y may be
// x where the backward is not to follow, and x_gradient may be the gradient.
// Nothing moves but in FinishGradients. The weight begins with ones.
class RmsNorm {
 public:
  // InvalidArgument if the width or epsilon is negative, or the type is not
  // f64, f32, bf16 or f16.
  static absl::StatusOr<RmsNorm> Create(const TensorGroup& group,
                                        const NormOptions& options);

  Parameter& weight() { return weight_; }
  // Appends "prefix.weight". Good until the norm is moved or gone.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // All but the last return FailedPrecondition if the weight, or its gradient,
  // is released, or `state` is not that of a forward.
  absl::Status Forward(ConstTensorView x, TensorView y, NormState& state);
  absl::Status BackwardInput(ConstTensorView gradient, ConstTensorView x,
                             const NormState& state, TensorView x_gradient);
  // The same for x += residual, and for x_gradient plus that of the residual,
  // with the bits of separate additions.
  absl::Status AddForward(ConstTensorView residual, TensorView x, TensorView y,
                          NormState& state);
  absl::Status AddBackwardInput(ConstTensorView gradient, ConstTensorView x,
                                const NormState& state,
                                ConstTensorView residual_gradient,
                                TensorView x_gradient);
  // Adds to the gradient of the weight.
  absl::Status BackwardWeight(ConstTensorView gradient, ConstTensorView x,
                              const NormState& state);

  // The same, adding to `sum` [width], of the type or of its statistics; needs
  // no gradient of the weight.
  absl::Status WeightGradient(ConstTensorView gradient, ConstTensorView x,
                              const NormState& state, TensorView sum);

  // After the last backward of a step. A collective under sequence parallelism.
  absl::Status FinishGradients();

 private:
  RmsNorm(const TensorGroup& group, const NormOptions& options,
          Parameter weight)
      : group_(group), options_(options), weight_(std::move(weight)) {}

  TensorGroup group_;
  NormOptions options_;
  Parameter weight_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_NORM_H_
