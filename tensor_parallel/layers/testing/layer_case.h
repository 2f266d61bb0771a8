// Helpers for tests of layers: cases, random tensors, and one-rank results to
// compare with.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_TESTING_LAYER_CASE_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_TESTING_LAYER_CASE_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct LayerCase {
  int64_t ranks = 1;
  bool sequence_parallel = false;
  DType dtype = DType::kF64;
  int64_t tokens = 7;

  // The tolerance of a comparison with the one-rank result, relative to the
  // largest magnitude.
  double tolerance() const;
};

std::ostream& operator<<(std::ostream& os, const LayerCase& layer_case);

// 1, 2, 3, 4 and 8 ranks, with and without sequence parallelism, in f64, f32
// and bf16, with 7 tokens and without tokens.
std::vector<LayerCase> AllLayerCases();

// Normal numbers by index, so that equal streams give equal tensors.
absl::StatusOr<Tensor> RandomTensor(DType dtype, std::span<const int64_t> shape,
                                    uint64_t stream);

// A list of numbers as a one-dimensional tensor.
template <typename T>
ConstTensorView ListOf(const std::vector<T>& values) {
  return *ConstTensorView::Of(std::span<const T>(values),
                              {{static_cast<int64_t>(values.size())}});
}
template <typename T>
TensorView ListOf(std::vector<T>& values) {
  return *TensorView::Of(std::span<T>(values),
                         {{static_cast<int64_t>(values.size())}});
}

// Copies a contiguous tensor from the host to the memory of the queue's device,
// and back. The host waits.
absl::StatusOr<Tensor> ToDevice(Queue& queue, ConstTensorView x);
absl::StatusOr<Tensor> ToHost(Queue& queue, ConstTensorView x);

// The elements of a view of the host as float64, in row-major order.
absl::StatusOr<std::vector<double>> ValuesOf(ConstTensorView x);

// A copy of ranges of dimension `dim`, concatenated.
absl::StatusOr<Tensor> Take(ConstTensorView x, int dim,
                            std::span<const IndexRange> ranges);

// OK if both agree within `tolerance` times the largest magnitude of `expected`
// (at least 1); otherwise InternalError that names `what` and the worst
// element.
absl::Status ExpectNear(std::string_view what, ConstTensorView actual,
                        ConstTensorView expected, double tolerance);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_TESTING_LAYER_CASE_H_
