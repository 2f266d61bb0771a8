// LinearWeights: a rank's part of the matrix [out, in] of a linear layer, its
// gradient, and those of the bias.
//
// The values do not depend on how the matrix is cut: each is drawn by its place
// in the whole matrix.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_WEIGHTS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "tensor_parallel/partition/index_range.h"
#include "tensor_parallel/random/philox.h"

namespace tessera::tensor_parallel {

// The type in which gradients of weights add up: f64 for f64, else f32.
DType GradientDType(DType dtype);

class LinearWeights {
 public:
  struct Shape {
    int64_t in = 0;  // Of the whole matrix.
    std::vector<IndexRange> rows = {};
    IndexRange columns = {};
    bool bias = false;
    DType dtype = DType::kF32;
  };

  // All zeros. InvalidArgument for a dtype other than f64, f32 and bf16.
  static absl::StatusOr<LinearWeights> Create(const Shape& shape);

  int64_t out() const { return weight_.shape()[0]; }  // Rows held.
  int64_t in() const { return weight_.shape()[1]; }   // Columns held.
  bool has_bias() const { return bias_.has_value(); }

  TensorView weight() { return weight_.view(); }
  TensorView weight_gradient() { return weight_gradient_.view(); }
  // [out()]; only where has_bias().
  TensorView bias() { return bias_->view(); }
  TensorView bias_gradient() { return bias_gradient_->view(); }

  // Element (o, i) of the whole matrix is the normal number of index o in + i,
  // times `deviation`, rounded to the dtype. The bias stays.
  absl::Status FillNormal(const RandomKey& key, double deviation);

  absl::Status ZeroGradients();
  absl::Status ScaleGradients(double factor);

 private:
  LinearWeights(Shape shape, Tensor weight, Tensor weight_gradient)
      : shape_(std::move(shape)),
        weight_(std::move(weight)),
        weight_gradient_(std::move(weight_gradient)) {}

  Shape shape_;
  Tensor weight_;
  Tensor weight_gradient_;
  std::optional<Tensor> bias_;
  std::optional<Tensor> bias_gradient_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_WEIGHTS_H_
