#include "tensor_parallel/layers/testing/layer_case.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "tensor_parallel/random/philox.h"

namespace tessera::tensor_parallel {

double LayerCase::tolerance() const {
  if (dtype == DType::kF64) return 1e-12;
  return dtype == DType::kF32 ? 1e-5 : 3e-2;
}

std::ostream& operator<<(std::ostream& os, const LayerCase& layer_case) {
  return os << layer_case.ranks << " ranks, "
            << (layer_case.sequence_parallel ? "sequence parallel, " : "")
            << DTypeName(layer_case.dtype) << ", " << layer_case.tokens
            << " tokens";
}

std::vector<LayerCase> AllLayerCases() {
  std::vector<LayerCase> cases;
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
        cases.push_back({ranks, sequence_parallel, dtype, 7});
      }
    }
  }
  cases.push_back({3, true, DType::kF32, 0});
  cases.push_back({2, false, DType::kF64, 0});
  return cases;
}

absl::StatusOr<Tensor> RandomTensor(DType dtype, std::span<const int64_t> shape,
                                    uint64_t stream) {
  TESSERA_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Create(dtype, shape));
  std::vector<double> values(static_cast<size_t>(tensor.element_count()));
  Philox({.seed = 1, .stream = stream}).FillNormal(0, std::span(values));
  TESSERA_RETURN_IF_ERROR(
      Convert(DType::kF64, std::as_bytes(std::span(values)), dtype,
              {tensor.view().data(),
               static_cast<size_t>(tensor.view().size_in_bytes())}));
  return tensor;
}

namespace {

absl::StatusOr<Tensor> CopyInto(std::shared_ptr<MemoryResource> memory,
                                Queue& queue, ConstTensorView x) {
  TESSERA_ASSIGN_OR_RETURN(
      Tensor copy,
      Tensor::Create(x.dtype(),
                     std::vector<int64_t>(x.shape().begin(), x.shape().end()),
                     std::move(memory)));
  const auto bytes = static_cast<size_t>(x.size_in_bytes());
  TESSERA_RETURN_IF_ERROR(
      queue.Copy({x.data(), bytes}, {copy.view().data(), bytes}));
  TESSERA_RETURN_IF_ERROR(queue.Synchronize());
  return copy;
}

}  // namespace

absl::StatusOr<Tensor> ToDevice(Queue& queue, ConstTensorView x) {
  return CopyInto(queue.device().memory(), queue, x);
}

absl::StatusOr<Tensor> ToHost(Queue& queue, ConstTensorView x) {
  return CopyInto(HostMemory(), queue, x);
}

absl::StatusOr<std::vector<double>> ValuesOf(ConstTensorView x) {
  const Dims& shape = x.shape();
  TESSERA_ASSIGN_OR_RETURN(
      Tensor copy, Tensor::Create(x.dtype(), std::vector<int64_t>(
                                                 shape.begin(), shape.end())));
  TESSERA_RETURN_IF_ERROR(Copy(x, copy.view()));
  std::vector<double> values(static_cast<size_t>(x.element_count()));
  TESSERA_RETURN_IF_ERROR(Convert(
      x.dtype(),
      {copy.view().data(), static_cast<size_t>(copy.view().size_in_bytes())},
      DType::kF64, std::as_writable_bytes(std::span(values))));
  return values;
}

absl::StatusOr<Tensor> Take(ConstTensorView x, int dim,
                            std::span<const IndexRange> ranges) {
  std::vector<int64_t> shape(x.shape().begin(), x.shape().end());
  shape[static_cast<size_t>(dim)] = 0;
  for (const IndexRange& range : ranges) {
    shape[static_cast<size_t>(dim)] += range.size();
  }
  TESSERA_ASSIGN_OR_RETURN(Tensor taken, Tensor::Create(x.dtype(), shape));
  int64_t at = 0;
  for (const IndexRange& range : ranges) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             x.Narrow(dim, range.begin, range.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             taken.view().Narrow(dim, at, range.size()));
    TESSERA_RETURN_IF_ERROR(Copy(from, to));
    at += range.size();
  }
  return taken;
}

absl::Status ExpectNear(std::string_view what, ConstTensorView actual,
                        ConstTensorView expected, double tolerance) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> a, ValuesOf(actual));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> e, ValuesOf(expected));
  if (a.size() != e.size()) {
    return absl::InternalError(absl::StrCat(what, " has ", a.size(),
                                            " elements instead of ", e.size()));
  }
  double largest = 1;
  for (const double value : e) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < a.size(); ++i) {
    // The comparison also rejects NaN.
    if (std::abs(a[i] - e[i]) <= tolerance * largest) continue;
    return absl::InternalError(
        absl::StrCat(what, "[", i, "] is ", a[i], " instead of ", e[i]));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
