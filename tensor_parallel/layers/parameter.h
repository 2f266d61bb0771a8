// The weights of layers: Parameter, one tensor of which a rank holds a part,
// and LinearWeights, the weight and bias of a linear layer.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_PARAMETER_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_PARAMETER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/random/philox.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// The type in which gradients of weights are accumulated: f64 for f64,
// otherwise f32.
DType GradientDType(DType dtype);

// "prefix.name", or "name" if the prefix is empty.
std::string ParameterName(std::string_view prefix, std::string_view name);

// Some rows of a whole tensor, or elements of a vector.
struct ParameterRows {
  IndexRange range;
  // True if no earlier rank of the tensor group holds the same rows.
  bool primary = true;

  friend bool operator==(const ParameterRows&, const ParameterRows&) = default;
};

// A weight of a layer, as optimizers and checkpoints see it: the part of the
// tensor that a rank holds, and the memory of values and gradients.
//
//   std::vector<Parameter*> parameters;
//   block.AppendParameters("layers.3", parameters);
//   for (Parameter* p : parameters) {           // a partitioned optimizer:
//     TESSERA_RETURN_IF_ERROR(p->BindGradient(bucket.ViewOf(p)));
//     p->Release();                              // the values live elsewhere
//   }
//   TESSERA_RETURN_IF_ERROR(p->Bind(gathered));  // just before the block runs
//
// A parameter starts with its own memory from the group (values and gradients
// of zeros), or without memory if the group has no weight memory. It frees its
// own memory when it is bound to other memory or released. Binding copies
// nothing: a bound parameter uses the bound memory. Layers that are called
// while required memory is released return FailedPrecondition with the name.
//
// The values are [rows held, columns held] (or [elements held] for a vector):
// the ranges of rows(), concatenated. The primary ranges of all ranks of the
// tensor group (and of the expert group) cover the tensor exactly once;
// checkpoints write these, and gradient norms count these.
class Parameter {
 public:
  struct Spec {
    std::string name = {};
    std::vector<int64_t> shape = {};  // Whole: [elements] or [rows, columns].
    std::vector<ParameterRows> rows = {};
    IndexRange columns = {0, 1};  // {0, 1} for a vector.
    // True if every rank of the tensor group holds the whole tensor.
    bool replicated = false;
    // The number of matrices of equal size that are stacked by rows (weights of
    // experts).
    int64_t matrices = 1;
    // False for a parameter without a gradient.
    bool trainable = true;
    // True if the ranks of an expert group hold different rows, so that fewer
    // ranks than the data-parallel ones hold the same rows.
    bool expert_parallel = false;
    DType dtype = DType::kF32;  // f64, f32, bf16 or f16.
  };

  // InvalidArgument if the type is not supported, the shape does not have one
  // or two dimensions, or the held part is outside the tensor.
  static absl::StatusOr<Parameter> Create(const TensorGroup& group, Spec spec);

  const std::string& name() const { return spec_.name; }
  void Rename(std::string name) { spec_.name = std::move(name); }

  // The shape of the whole tensor, and of the part that this rank holds.
  const std::vector<int64_t>& shape() const { return spec_.shape; }
  const std::vector<int64_t>& local_shape() const { return local_shape_; }
  int64_t element_count() const;  // Of the held part.
  const std::vector<ParameterRows>& rows() const { return spec_.rows; }
  IndexRange columns() const { return spec_.columns; }
  bool replicated() const { return spec_.replicated; }
  int64_t matrices() const { return spec_.matrices; }
  bool trainable() const { return spec_.trainable; }
  // Stops training the parameter: releases its gradient, which layers then no
  // longer require.
  void Freeze() {
    spec_.trainable = false;
    ReleaseGradient();
  }
  bool expert_parallel() const { return spec_.expert_parallel; }
  // Changes the description of the held rows; the number and the sizes of the
  // ranges must stay the same. InvalidArgument as for Create.
  absl::Status Describe(std::vector<int64_t> shape,
                        std::vector<ParameterRows> rows, bool replicated);

  DType dtype() const { return spec_.dtype; }
  // GradientDType(dtype()), or the type of the bound memory.
  DType gradient_dtype() const { return gradient_.dtype; }

  // Views are valid until the next Bind or Release. They have shape [0, 0] if
  // the memory is released.
  TensorView value() const;
  TensorView gradient() const;
  bool has_value() const { return value_.view.has_value(); }
  bool has_gradient() const { return gradient_.view.has_value(); }
  // FailedPrecondition, with the name, if the value is released.
  absl::Status CheckValue() const;
  // The same for the gradient; OK if the parameter is not trainable.
  absl::Status CheckGradient() const;

  // Contiguous memory of local_shape(): values of dtype(), gradients of dtype()
  // or of GradientDType(dtype()). It must outlive the binding. InvalidArgument,
  // without side effects, if the view does not match.
  absl::Status Bind(TensorView value);
  absl::Status BindGradient(TensorView gradient);
  void Release() { value_.Reset(); }
  void ReleaseGradient() { gradient_.Reset(); }

  // Sets element (row, column) of the whole tensor to the normal number of
  // index row * columns + column, times `deviation`, rounded to the type: the
  // same on every mesh. Requires the values. The host computes the numbers and
  // waits until the device has them.
  absl::Status FillNormal(Ops& ops, const RandomKey& key, double deviation);
  // Sets `values`, of dtype(), to the same numbers, for the held elements from
  // `first` on in row-major order. Does not require the values. Thread-safe.
  absl::Status DrawNormals(const RandomKey& key, double deviation,
                           int64_t first, std::span<std::byte> values) const;
  // Fill requires the values, ZeroGradient the gradient.
  absl::Status Fill(Ops& ops, double value);
  absl::Status ZeroGradient(Ops& ops);

 private:
  // Own memory, bound memory, or no memory.
  struct Memory {
    void Reset() {
      own.reset();
      view.reset();
    }
    DType dtype = DType::kF32;
    std::optional<Tensor> own = {};
    std::optional<TensorView> view = {};
  };

  explicit Parameter(Spec spec) : spec_(std::move(spec)) {}

  absl::Status Allocate(const TensorGroup& group, Memory& memory) const;
  absl::Status CheckView(std::string_view what, const TensorView& view) const;

  Spec spec_;
  std::vector<int64_t> local_shape_;
  Memory value_;
  Memory gradient_;
};

// A rank's part of the weight matrix [out, in] of a linear layer and of its
// bias, with their gradients.
//
//   layer.AppendParameters("mlp.down", parameters);   // mlp.down.weight, .bias
//
// The initial values do not depend on the partition of the matrix: each is a
// function of its position in the whole matrix.
class LinearWeights {
 public:
  struct Shape {
    int64_t in = 0;  // Of the whole matrix.
    std::vector<IndexRange> rows = {};
    IndexRange columns = {};
    bool bias = false;
    DType dtype = DType::kF32;
    // The output features of the whole matrix; default: the end of the last
    // range of rows.
    std::optional<int64_t> out = {};
  };

  // All values are zero, or have no memory. InvalidArgument as for
  // Parameter::Create.
  static absl::StatusOr<LinearWeights> Create(const TensorGroup& group,
                                              const Shape& shape);

  int64_t out() const { return weight_.local_shape()[0]; }  // Rows held.
  int64_t in() const { return weight_.local_shape()[1]; }   // Columns held.
  bool has_bias() const { return bias_.has_value(); }

  Parameter& weight_parameter() { return weight_; }
  Parameter& bias_parameter() { return *bias_; }  // Requires has_bias().

  // Like Parameter::value and gradient; shape [0, 0] while released.
  TensorView weight() { return weight_.value(); }
  TensorView weight_gradient() { return weight_.gradient(); }
  // [out()]; requires has_bias().
  TensorView bias() { return bias_->value(); }
  TensorView bias_gradient() { return bias_->gradient(); }

  // FailedPrecondition, with the name, if a value (or gradient) is released.
  absl::Status CheckValues() const;
  absl::Status CheckGradients() const;

  // The properties of the rank's part that its shape does not determine: the
  // outputs of the whole matrix, whether this rank is the first holder of each
  // range of rows, and whether all ranks hold the whole bias.
  struct Place {
    int64_t out = 0;
    std::vector<bool> primary = {};  // Empty: all are primary.
    bool bias_replicated = false;
    bool bias_primary = true;  // If the bias is replicated.
  };
  absl::Status Describe(const Place& place);

  // Names the weight "prefix.weight" and the bias "prefix.bias", and appends
  // them. The pointers are valid until the layer is moved or destroyed.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // Like Parameter::FillNormal. The bias is unchanged.
  absl::Status FillNormal(Ops& ops, const RandomKey& key, double deviation);

 private:
  explicit LinearWeights(Parameter weight) : weight_(std::move(weight)) {}

  Parameter weight_;
  std::optional<Parameter> bias_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_PARAMETER_H_
