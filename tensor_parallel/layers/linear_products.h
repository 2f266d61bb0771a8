// The matrix products of linear layers (LinearProducts), in the type of their
// operands or in fp8, and the scales of the latter (Fp8Scaling).
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_PRODUCTS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {

struct Fp8Options {
  int64_t layers = 0;    // The linear layers that share the object.
  int64_t history = 16;  // Steps in the history; 1 to 1024.
  int margin = 0;        // Headroom above amax in powers of two; 0 to 100.
};

// The scales of products in fp8, which follow the magnitudes of earlier steps
// (delayed scaling: Micikevicius et al., FP8 Formats for Deep Learning, arXiv
// 2209.05433, and NVIDIA Transformer Engine's recipe of that name).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto fp8, Fp8Scaling::Create(group, {.layers = 2}));
//   auto up = ColumnParallelLinear::Create(
//       group, {.in = 512, .out = 2048, .dtype = DType::kBF16, .fp8 = fp8});
//   ...                                            // passes of a step
//   TESSERA_RETURN_IF_ERROR(fp8->FinishStep());    // once a step
//
// Inputs and weights of the layers are cast to fp8_e4m3 and gradients of
// outputs to fp8_e5m2, each multiplied by its own scale; products are
// accumulated in f32, and their results have the same types as without fp8.
// Weights and activations stay in the layer's type: the fp8 copies exist only
// during a product. The layers of one object share the memory of the copies,
// which has the size of the largest operands.
//
// The scale of an operand is largest / (amax 2^margin), where `largest` is the
// largest fp8 value and amax the operand's largest magnitude in the last
// `history` steps. In the first step there is no history, so each rank measures
// each operand before it casts it. The host does not read the scales.
class Fp8Scaling {
 public:
  enum class Operand { kInput, kWeight, kOutputGradient };

  // `group` is the group of the layers, whose queue does all work.
  // InvalidArgument if an option is outside its range.
  static absl::StatusOr<std::shared_ptr<Fp8Scaling>> Create(
      const TensorGroup& group, const Fp8Options& options);

  // Returns the number of a new layer. FailedPrecondition if there are already
  // Fp8Options::layers layers.
  absl::StatusOr<int64_t> AddLayer();

  // An operand of Ops::GemmFp8.
  struct Cast {
    ConstTensorView values;
    ConstTensorView inverse;
  };
  // Casts `x` [m, n], or its transpose, as an operand of layer `layer`. Valid
  // until the next cast to `memory`.
  absl::StatusOr<Cast> CastTo(ReusableTensor& memory, int64_t layer,
                              Operand operand, ConstTensorView x,
                              bool transposed);

  // The memory of the operands of the next products.
  ReusableTensor& weight() { return weight_; }
  ReusableTensor& first() { return first_; }
  ReusableTensor& second() { return second_; }

  // Call it after the last backward of a step: adds the largest magnitudes over
  // all ranks of the group and of `replicas` (one all-reduce each of 12 bytes
  // per layer) to the history and computes new scales. So ranks that hold parts
  // of a matrix have equal scales, and with the data-parallel ranks as
  // `replicas` the scales do not depend on the partition of the tokens. Null:
  // none.
  absl::Status FinishStep(collectives::Communicator* replicas = nullptr);

  // Discards the magnitudes of the passes since the last step, for example
  // those of a validation.
  absl::Status DiscardStep() {
    return group_.ops().Run(op::Fill{0, Row(kAmax)});
  }

  // The history of magnitudes and the scales, as bytes in the memory of the
  // group's device, and whether a step has finished. A run that restores both
  // between steps continues with equal bits.
  std::span<std::byte> state() {
    const TensorView table = table_.view();
    return {static_cast<std::byte*>(table.data()),
            static_cast<size_t>(table.element_count()) * sizeof(float)};
  }
  bool has_history() const { return has_history_; }
  void set_has_history(bool has_history) { has_history_ = has_history; }

  // Copies what `state`, a copy of state() in host memory with room for
  // `capacity` layers, has of `count` layers from `first` on; and the reverse.
  // The bytes of a layer do not depend on the other layers. Preconditions: the
  // layers exist, and `layers` has LayerBytes() for each.
  static std::string CopyLayers(std::span<const std::byte> state,
                                int64_t capacity, int64_t first, int64_t count);
  void SetLayers(std::string_view layers, int64_t first, int64_t count,
                 std::span<std::byte> state) const;
  int64_t capacity() const { return options_.layers; }
  int64_t LayerBytes() const;

  // f32 [3 layers]: the scales of the next step, of all inputs, then all
  // weights, then all gradients. For tests and reports.
  ConstTensorView scales() { return Row(kScale); }

 private:
  // Rows of the table.
  enum { kLargest, kAmax, kScale, kInverse, kHistory };

  Fp8Scaling(const TensorGroup& group, const Fp8Options& options, Tensor table);

  absl::Status Initialise();
  TensorView Row(int64_t row);
  // One number of a row.
  TensorView Number(int64_t row, int64_t index);
  // The bytes of a table, by offset and size, that CopyLayers copies.
  static std::vector<std::pair<size_t, size_t>> BytesOf(size_t table,
                                                        int64_t capacity,
                                                        int64_t first,
                                                        int64_t count);
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

// The three products of a linear layer, in the type of its operands or in fp8.
//
//   TESSERA_RETURN_IF_ERROR(products.LoadForForward(weight));
//   TESSERA_RETURN_IF_ERROR(products.Forward(x, y));    // of some tokens
class LinearProducts {
 public:
  // `fp8` is null for products in the type of the operands.
  static absl::StatusOr<LinearProducts> Create(const TensorGroup& group,
                                               std::shared_ptr<Fp8Scaling> fp8);

  // Loads the weight [out, in] for the products of any number of chunks of
  // tokens.
  absl::Status LoadForForward(ConstTensorView weight);
  absl::Status LoadForInputGradient(ConstTensorView weight);

  // y = x weight^T and x_gradient = y_gradient weight, with the loaded weight;
  // the latter is added to x_gradient if `accumulate` is true.
  absl::Status Forward(ConstTensorView x, TensorView y);
  absl::Status InputGradient(ConstTensorView y_gradient, TensorView x_gradient,
                             bool accumulate = false);
  // weight_gradient += y_gradient^T x.
  absl::Status AddWeightGradient(ConstTensorView y_gradient, ConstTensorView x,
                                 TensorView weight_gradient);

 private:
  LinearProducts(const TensorGroup& group, std::shared_ptr<Fp8Scaling> fp8,
                 int64_t layer)
      : group_(group), fp8_(std::move(fp8)), layer_(layer) {}

  absl::Status Load(ConstTensorView weight, bool transposed);
  absl::Status MultiplyByWeight(Fp8Scaling::Operand operand, ConstTensorView x,
                                TensorView y, bool accumulate);

  TensorGroup group_;
  std::shared_ptr<Fp8Scaling> fp8_;
  int64_t layer_;
  std::optional<ConstTensorView> weight_;
  std::optional<Fp8Scaling::Cast> weight_cast_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LINEAR_PRODUCTS_H_
