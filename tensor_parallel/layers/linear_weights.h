// LinearWeights: a rank's part of the matrix [out, in] of a linear layer, its
// gradient, and those of the bias.
//
//   layer.AppendParameters("mlp.down", parameters);   // mlp.down.weight, .bias
//
// The values do not depend on how the matrix is cut: each is drawn by its place
// in the whole matrix.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_WEIGHTS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_WEIGHTS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/random/philox.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel {

class LinearWeights {
 public:
  struct Shape {
    int64_t in = 0;  // Of the whole matrix.
    std::vector<IndexRange> rows = {};
    IndexRange columns = {};
    bool bias = false;
    DType dtype = DType::kF32;
    bool has_memory = true;  // As Parameter::Spec.
    // Of the whole matrix; where not given, the end of the last rows.
    std::optional<int64_t> out = {};
  };

  // All zeros, or without memory. InvalidArgument for a dtype other than f64,
  // f32 and bf16.
  static absl::StatusOr<LinearWeights> Create(const Shape& shape);

  int64_t out() const { return weight_.local_shape()[0]; }  // Rows held.
  int64_t in() const { return weight_.local_shape()[1]; }   // Columns held.
  bool has_bias() const { return bias_.has_value(); }

  Parameter& weight_parameter() { return weight_; }
  Parameter& bias_parameter() { return *bias_; }  // Only where has_bias().

  // As Parameter::value and gradient: of shape [0, 0] while released.
  TensorView weight() { return weight_.value(); }
  TensorView weight_gradient() { return weight_.gradient(); }
  // [out()]; only where has_bias().
  TensorView bias() { return bias_->value(); }
  TensorView bias_gradient() { return bias_->gradient(); }

  // FailedPrecondition, with the name, where something is released.
  absl::Status CheckValues() const;
  absl::Status CheckGradients() const;

  // What the rank's part is of, where the shape could not say it: the outputs
  // of the whole matrix; by range of rows whether this rank is the first to
  // hold them; and whether all ranks hold the whole bias.
  struct Place {
    int64_t out = 0;
    std::vector<bool> primary = {};  // Empty: all are.
    bool bias_replicated = false;
    bool bias_primary = true;  // Where it is replicated.
  };
  absl::Status Describe(const Place& place);

  // Names the weight "prefix.weight" and the bias "prefix.bias", and appends
  // them. The pointers are good until the layer is moved or gone.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // As Parameter::FillNormal. The bias stays.
  absl::Status FillNormal(const RandomKey& key, double deviation);

  absl::Status ZeroGradients();
  absl::Status ScaleGradients(double factor);

 private:
  explicit LinearWeights(Parameter weight) : weight_(std::move(weight)) {}

  Parameter weight_;
  std::optional<Parameter> bias_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_WEIGHTS_H_
