// Fp8Scaling: the scales of products in fp8, which follow the magnitudes of
// earlier steps (delayed scaling: Micikevicius et al., FP8 Formats for Deep
// Learning, arXiv 2209.05433, and NVIDIA Transformer Engine's recipe of that
// name).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto fp8, Fp8Scaling::Create(group, {.layers = 2}));
//   auto up = ColumnParallelLinear::Create(
//       group, {.in = 512, .out = 2048, .dtype = DType::kBF16, .fp8 = fp8});
//   ...                                            // passes of a step
//   TESSERA_RETURN_IF_ERROR(fp8->FinishStep());    // once a step
//
// Inputs and weights of the layers are cast to fp8_e4m3 and gradients of
// outputs to fp8_e5m2, each multiplied by a scale of its own; products are
// accumulated in f32, and their results are of the types that they have without
// fp8. Weights and activations stay in the layer's type: the copies in fp8 are
// made for a product and forgotten after it. Layers of one object share their
// memory, which is that of the largest operands.
//
// The scale of an operand is largest / (amax 2^margin), where amax is its
// largest magnitude in the last `history` steps. In the first step there is no
// history, and each operand is measured before it is cast, on each rank for
// itself; so a run that resumes needs no scales of the run before. Nothing is
// read by the host.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_PRODUCTS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_PRODUCTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {

struct Fp8Options {
  int64_t layers = 0;    // Linear layers that share the object.
  int64_t history = 16;  // Steps whose magnitudes count; 1 to 1024.
  int margin = 0;        // Powers of two of room above amax; 0 to 100.
};

class Fp8Scaling {
 public:
  enum class Operand { kInput, kWeight, kOutputGradient };

  // `group` is that of the layers; its queue does all work. InvalidArgument if
  // an option is outside its range.
  static absl::StatusOr<std::shared_ptr<Fp8Scaling>> Create(
      const TensorGroup& group, const Fp8Options& options);

  // The number of another layer. FailedPrecondition if there are as many as
  // the options say.
  absl::StatusOr<int64_t> AddLayer();

  // An operand of Ops::GemmFp8.
  struct Cast {
    ConstTensorView values;
    ConstTensorView inverse;
  };
  // `x` [m, n], or its transpose, as an operand of layer `layer`. Good until
  // the next one of `memory`.
  absl::StatusOr<Cast> CastTo(ReusableTensor& memory, int64_t layer,
                              Operand operand, ConstTensorView x,
                              bool transposed);

  // Memory of operands that the next products need.
  ReusableTensor& weight() { return weight_; }
  ReusableTensor& first() { return first_; }
  ReusableTensor& second() { return second_; }

  // After the last backward of a step: the largest magnitudes of all ranks of
  // the group (one all-reduce of 12 bytes a layer) become part of the history,
  // and new scales follow. Ranks that hold parts of a matrix thus have equal
  // scales. Data-parallel ranks have scales of their own.
  absl::Status FinishStep();

  // After passes whose magnitudes do not count, such as those of validation.
  absl::Status DiscardStep() {
    return group_.ops().Run(op::Fill{0, Row(kAmax)});
  }

  // f32 [3 layers]: the scales of the next step, of all inputs, then weights,
  // then gradients. For tests and reports.
  ConstTensorView scales() { return Row(kScale); }

 private:
  // Rows of the table.
  enum { kLargest, kAmax, kScale, kInverse, kHistory };

  Fp8Scaling(const TensorGroup& group, const Fp8Options& options, Tensor table);

  absl::Status Initialise();
  TensorView Row(int64_t row);
  // One number of a row.
  TensorView Number(int64_t row, int64_t index);
  absl::Status Measure(int64_t index, ConstTensorView x);
  absl::StatusOr<TensorView> Absent(DType dtype) const;

  TensorGroup group_;
  Fp8Options options_;
  Tensor table_;  // f32 [kHistory + history, 3 layers]
  int64_t layers_ = 0;
  bool has_history_ = false;
  ReusableTensor weight_;
  ReusableTensor first_;
  ReusableTensor second_;
};

// LinearProducts: the three products of a linear layer, in the type of its
// operands or in fp8.
//
//   TESSERA_RETURN_IF_ERROR(products.LoadForForward(weight));
//   TESSERA_RETURN_IF_ERROR(products.Forward(x, y));    // of some tokens
class LinearProducts {
 public:
  // With `fp8` null, in the type of the operands.
  static absl::StatusOr<LinearProducts> Create(const TensorGroup& group,
                                               std::shared_ptr<Fp8Scaling> fp8);

  // Before the products of some tokens after others with this weight [out, in].
  absl::Status LoadForForward(ConstTensorView weight);
  absl::Status LoadForInputGradient(ConstTensorView weight);

  // y = x weight^T and x_gradient = y_gradient weight, of what was loaded.
  absl::Status Forward(ConstTensorView x, TensorView y);
  absl::Status InputGradient(ConstTensorView y_gradient, TensorView x_gradient);
  // weight_gradient += y_gradient^T x.
  absl::Status AddWeightGradient(ConstTensorView y_gradient, ConstTensorView x,
                                 TensorView weight_gradient);

 private:
  LinearProducts(const TensorGroup& group, std::shared_ptr<Fp8Scaling> fp8,
                 int64_t layer)
      : group_(group), fp8_(std::move(fp8)), layer_(layer) {}

  absl::Status Load(ConstTensorView weight, bool transposed);
  absl::Status MultiplyByWeight(Fp8Scaling::Operand operand, ConstTensorView x,
                                TensorView y);

  TensorGroup group_;
  std::shared_ptr<Fp8Scaling> fp8_;
  int64_t layer_;
  std::optional<ConstTensorView> weight_;
  std::optional<Fp8Scaling::Cast> weight_cast_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_PRODUCTS_H_
