#include "tensor_parallel/layers/linear_products.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kOperands = 3;

DType TypeOf(Fp8Scaling::Operand operand) {
  return operand == Fp8Scaling::Operand::kOutputGradient ? DType::kF8E5M2
                                                         : DType::kF8E4M3;
}

}  // namespace

Fp8Scaling::Fp8Scaling(const TensorGroup& group, const Fp8Options& options,
                       Tensor table)
    : group_(group),
      options_(options),
      table_(std::move(table)),
      weight_(group.memory(), group.queue()),
      first_(group.memory(), group.queue()),
      second_(group.memory(), group.queue()) {}

absl::StatusOr<std::shared_ptr<Fp8Scaling>> Fp8Scaling::Create(
    const TensorGroup& group, const Fp8Options& options) {
  if (options.layers < 0 || options.history < 1 || options.history > 1024 ||
      options.margin < 0 || options.margin > 100) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scales of fp8 for ", options.layers, " layers with a history of ",
        options.history, " steps and a margin of ", options.margin,
        "; give 0 layers or more, 1 to 1024 steps, and a margin of 0 to 100"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      Tensor table,
      Tensor::Create(DType::kF32,
                     {{kHistory + options.history, kOperands * options.layers}},
                     group.memory()));
  std::shared_ptr<Fp8Scaling> scaling(
      new Fp8Scaling(group, options, std::move(table)));
  TESSERA_RETURN_IF_ERROR(scaling->Initialise());
  return scaling;
}

absl::Status Fp8Scaling::Initialise() {
  constexpr double kLargestE4M3 = 448, kLargestE5M2 = 57344;
  Ops& ops = group_.ops();
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, table_.view()}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{1, Row(kScale)}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{1, Row(kInverse)}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{kLargestE4M3, Row(kLargest)}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView gradients,
      Row(kLargest).Narrow(0, 2 * options_.layers, options_.layers));
  return ops.Run(op::Fill{kLargestE5M2, gradients});
}

TensorView Fp8Scaling::Row(int64_t row) {
  return *table_.view().Select(0, row);
}

TensorView Fp8Scaling::Number(int64_t row, int64_t index) {
  return *Row(row).Narrow(0, index, 1);
}

absl::StatusOr<TensorView> Fp8Scaling::Absent(DType dtype) const {
  return TensorView::Create({}, dtype, {{0, 0}}, group_.memory()->kind());
}

absl::StatusOr<int64_t> Fp8Scaling::AddLayer() {
  if (layers_ == options_.layers) {
    return absl::FailedPreconditionError(
        absl::StrCat("scales of fp8 for ", options_.layers,
                     " layers have that many; give Fp8Options::layers the "
                     "number of linear layers that share them"));
  }
  return layers_++;
}

// Measures x and sets the operand's scale from its largest magnitude so far.
absl::Status Fp8Scaling::Measure(int64_t index, ConstTensorView x) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView absent, Absent(DType::kF8E4M3));
  const TensorView scale = Number(kScale, index);
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(
      op::CastTranspose{x, scale, Number(kAmax, index), absent, absent}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView no_history,
      TensorView::Create({}, DType::kF32, {{0, 1}}, group_.memory()->kind()));
  return group_.ops().Run(op::UpdateScales{
      options_.margin, Number(kLargest, index), Number(kAmax, index),
      no_history, scale, Number(kInverse, index)});
}

absl::StatusOr<Fp8Scaling::Cast> Fp8Scaling::CastTo(ReusableTensor& memory,
                                                    int64_t layer,
                                                    Operand operand,
                                                    ConstTensorView x,
                                                    bool transposed) {
  const int64_t index = static_cast<int64_t>(operand) * options_.layers + layer;
  const DType dtype = TypeOf(operand);
  if (!has_history_) TESSERA_RETURN_IF_ERROR(Measure(index, x));
  const int64_t m = x.shape()[0], n = x.shape()[1];
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView values,
      transposed ? memory.Get(dtype, {{n, m}}) : memory.Get(dtype, {{m, n}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView absent, Absent(dtype));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::CastTranspose{
      x, Number(kScale, index), Number(kAmax, index),
      transposed ? absent : values, transposed ? values : absent}));
  return Cast{values, Number(kInverse, index)};
}

absl::Status Fp8Scaling::FinishStep(collectives::Communicator* replicas) {
  const TensorView amax = Row(kAmax);
  if (amax.element_count() == 0) return absl::OkStatus();
  const collectives::Buffer buffer(amax.data(), amax.element_count(),
                                   amax.dtype());
  for (collectives::Communicator* ranks : {group_.communicator(), replicas}) {
    if (ranks == nullptr || ranks->size() == 1) continue;
    TESSERA_RETURN_IF_ERROR(ranks->RunOn(
        group_.queue(), collectives::AllReduceOf(
                            buffer, buffer, collectives::Reduction::Max())));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView history,
                           table_.view().Narrow(0, kHistory, options_.history));
  has_history_ = true;
  return group_.ops().Run(op::UpdateScales{options_.margin, Row(kLargest), amax,
                                           history, Row(kScale),
                                           Row(kInverse)});
}

int64_t Fp8Scaling::LayerBytes() const {
  const int64_t rows = kHistory + options_.history - kScale;
  return rows * kOperands * static_cast<int64_t>(sizeof(float));
}

std::vector<std::pair<size_t, size_t>> Fp8Scaling::BytesOf(size_t table,
                                                           int64_t capacity,
                                                           int64_t first,
                                                           int64_t count) {
  const int64_t rows = static_cast<int64_t>(table / sizeof(float)) /
                       (kOperands * std::max<int64_t>(capacity, 1));
  std::vector<std::pair<size_t, size_t>> ranges;
  for (int64_t row = kScale; row < rows; ++row) {
    for (int64_t operand = 0; operand < kOperands; ++operand) {
      const int64_t at = (row * kOperands + operand) * capacity + first;
      ranges.emplace_back(static_cast<size_t>(at) * sizeof(float),
                          static_cast<size_t>(count) * sizeof(float));
    }
  }
  return ranges;
}

std::string Fp8Scaling::CopyLayers(std::span<const std::byte> state,
                                   int64_t capacity, int64_t first,
                                   int64_t count) {
  std::string layers;
  for (const auto& [offset, size] :
       BytesOf(state.size(), capacity, first, count)) {
    layers.append(reinterpret_cast<const char*>(state.data()) + offset, size);
  }
  return layers;
}

void Fp8Scaling::SetLayers(std::string_view layers, int64_t first,
                           int64_t count, std::span<std::byte> state) const {
  for (const auto& [offset, size] :
       BytesOf(state.size(), options_.layers, first, count)) {
    std::memcpy(state.data() + offset, layers.data(), size);
    layers.remove_prefix(size);
  }
}

absl::StatusOr<LinearProducts> LinearProducts::Create(
    const TensorGroup& group, std::shared_ptr<Fp8Scaling> fp8) {
  int64_t layer = 0;
  if (fp8 != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(layer, fp8->AddLayer());
  }
  return LinearProducts(group, std::move(fp8), layer);
}

absl::Status LinearProducts::Load(ConstTensorView weight, bool transposed) {
  weight_ = weight;
  if (fp8_ == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      weight_cast_,
      fp8_->CastTo(fp8_->weight(), layer_, Fp8Scaling::Operand::kWeight, weight,
                   transposed));
  return absl::OkStatus();
}

absl::Status LinearProducts::LoadForForward(ConstTensorView weight) {
  return Load(weight, /*transposed=*/false);
}

absl::Status LinearProducts::LoadForInputGradient(ConstTensorView weight) {
  return Load(weight, /*transposed=*/true);
}

absl::Status LinearProducts::MultiplyByWeight(Fp8Scaling::Operand operand,
                                              ConstTensorView x, TensorView y,
                                              bool accumulate) {
  TESSERA_ASSIGN_OR_RETURN(
      const Fp8Scaling::Cast cast,
      fp8_->CastTo(fp8_->first(), layer_, operand, x, /*transposed=*/false));
  return group_.ops().Run(
      op::GemmFp8{{.accumulate = accumulate,
                   .fast = operand == Fp8Scaling::Operand::kInput},
                  cast.values,
                  cast.inverse,
                  weight_cast_->values,
                  weight_cast_->inverse,
                  y});
}

absl::Status LinearProducts::Forward(ConstTensorView x, TensorView y) {
  if (fp8_ == nullptr) {
    return group_.ops().Run(op::Gemm{{.transpose_b = true}, x, *weight_, y});
  }
  return MultiplyByWeight(Fp8Scaling::Operand::kInput, x, y,
                          /*accumulate=*/false);
}

absl::Status LinearProducts::InputGradient(ConstTensorView y_gradient,
                                           TensorView x_gradient,
                                           bool accumulate) {
  if (fp8_ == nullptr) {
    return group_.ops().Run(op::Gemm{
        {.beta = accumulate ? 1.0 : 0.0}, y_gradient, *weight_, x_gradient});
  }
  return MultiplyByWeight(Fp8Scaling::Operand::kOutputGradient, y_gradient,
                          x_gradient, accumulate);
}

absl::Status LinearProducts::AddWeightGradient(ConstTensorView y_gradient,
                                               ConstTensorView x,
                                               TensorView weight_gradient) {
  if (fp8_ == nullptr) {
    return group_.ops().Run(op::Gemm{
        {.transpose_a = true, .beta = 1}, y_gradient, x, weight_gradient});
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Fp8Scaling::Cast gradient,
      fp8_->CastTo(fp8_->first(), layer_, Fp8Scaling::Operand::kOutputGradient,
                   y_gradient, /*transposed=*/true));
  TESSERA_ASSIGN_OR_RETURN(
      const Fp8Scaling::Cast input,
      fp8_->CastTo(fp8_->second(), layer_, Fp8Scaling::Operand::kInput, x,
                   /*transposed=*/true));
  return group_.ops().Run(op::GemmFp8{{.accumulate = true},
                                      gradient.values,
                                      gradient.inverse,
                                      input.values,
                                      input.inverse,
                                      weight_gradient});
}

}  // namespace tessera::tensor_parallel
