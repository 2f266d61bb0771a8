#include "tensor_parallel/layers/linear_weights.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"

namespace tessera::tensor_parallel {
namespace {

absl::StatusOr<Tensor> Zeros(DType dtype, std::span<const int64_t> shape) {
  TESSERA_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Create(dtype, shape));
  TESSERA_RETURN_IF_ERROR(Fill(tensor.view(), 0.0));
  return tensor;
}

template <typename T>
absl::Status ScaleBy(double factor, TensorView x) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<T> values, x.AsSpan<T>());
  for (T& value : values) value *= static_cast<T>(factor);
  return absl::OkStatus();
}

}  // namespace

DType GradientDType(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

absl::StatusOr<LinearWeights> LinearWeights::Create(const Shape& shape) {
  if (shape.dtype != DType::kF64 && shape.dtype != DType::kF32 &&
      shape.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights of ", DTypeName(shape.dtype),
                     "; f64, f32 and bf16 are allowed"));
  }
  int64_t out = 0;
  for (const IndexRange& range : shape.rows) out += range.size();
  const int64_t dims[] = {out, shape.columns.size()};
  const DType gradients = GradientDType(shape.dtype);
  TESSERA_ASSIGN_OR_RETURN(Tensor weight, Zeros(shape.dtype, dims));
  TESSERA_ASSIGN_OR_RETURN(Tensor gradient, Zeros(gradients, dims));
  LinearWeights weights(shape, std::move(weight), std::move(gradient));
  if (shape.bias) {
    TESSERA_ASSIGN_OR_RETURN(weights.bias_, Zeros(shape.dtype, {{out}}));
    TESSERA_ASSIGN_OR_RETURN(weights.bias_gradient_, Zeros(gradients, {{out}}));
  }
  return weights;
}

absl::Status LinearWeights::FillNormal(const RandomKey& key, double deviation) {
  const Philox random(key);
  std::vector<double> row(static_cast<size_t>(in()));
  const auto row_bytes = static_cast<size_t>(in() * SizeInBytes(shape_.dtype));
  std::byte* to = weight_.view().data();
  for (const IndexRange& range : shape_.rows) {
    for (int64_t o = range.begin; o < range.end; ++o) {
      random.FillNormal(
          static_cast<uint64_t>(o) * static_cast<uint64_t>(shape_.in) +
              static_cast<uint64_t>(shape_.columns.begin),
          std::span(row));
      for (double& value : row) value *= deviation;
      TESSERA_RETURN_IF_ERROR(Convert(DType::kF64,
                                      std::as_bytes(std::span(row)),
                                      shape_.dtype, {to, row_bytes}));
      to += row_bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status LinearWeights::ZeroGradients() {
  TESSERA_RETURN_IF_ERROR(Fill(weight_gradient_.view(), 0.0));
  return has_bias() ? Fill(bias_gradient_->view(), 0.0) : absl::OkStatus();
}

absl::Status LinearWeights::ScaleGradients(double factor) {
  const bool wide = weight_gradient_.dtype() == DType::kF64;
  const auto scale = [&](TensorView x) {
    return wide ? ScaleBy<double>(factor, x) : ScaleBy<float>(factor, x);
  };
  TESSERA_RETURN_IF_ERROR(scale(weight_gradient_.view()));
  return has_bias() ? scale(bias_gradient_->view()) : absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
