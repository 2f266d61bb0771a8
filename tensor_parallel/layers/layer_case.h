// Helpers for tests of layers: cases, random tensors, and one-rank results to
// compare with.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LAYER_CASE_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LAYER_CASE_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct LayerCase {
  int64_t ranks = 1;
  bool sequence_parallel = false;
  DType dtype = DType::kF64;
  int64_t tokens = 7;

  // How far from the one-rank result, relative to the largest magnitude.
  double tolerance() const;
};

std::ostream& operator<<(std::ostream& os, const LayerCase& layer_case);

// 1, 2, 3, 4, 8 ranks, with and without sequence parallelism, f64, f32 and
// bf16, 7 tokens and none.
std::vector<LayerCase> AllLayerCases();

// Normal numbers by index, so that equal streams are equal tensors.
absl::StatusOr<Tensor> RandomTensor(DType dtype, std::span<const int64_t> shape,
                                    uint64_t stream);

// The elements as float64, in row-major order, of any view.
absl::StatusOr<std::vector<double>> ValuesOf(ConstTensorView x);

// A copy of ranges of dimension `dim`, concatenated.
absl::StatusOr<Tensor> Take(ConstTensorView x, int dim,
                            std::span<const IndexRange> ranges);

// OK if both agree within `tolerance` times the largest magnitude of `expected`
// (at least 1); else InternalError that names `what` and the worst element.
absl::Status ExpectNear(std::string_view what, ConstTensorView actual,
                        ConstTensorView expected, double tolerance);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LAYER_CASE_H_
