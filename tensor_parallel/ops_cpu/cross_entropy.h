// The parts of softmax cross-entropy of ops/ops.h on the CPU. Memory-bound
// where vectors are wide: each reads the logits once, the gradient writes them
// too. In the calling thread.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CROSS_ENTROPY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CROSS_ENTROPY_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel::cpu {

absl::Status RowMax(const ConstTensorView& logits, const TensorView& largest);
absl::Status SumExp(const ConstTensorView& logits,
                    const ConstTensorView& largest, const TensorView& sum);
absl::Status Pick(const ConstTensorView& logits, IndexRange held,
                  std::span<const int64_t> targets, const TensorView& picked);
absl::Status CrossEntropyLosses(const ConstTensorView& largest,
                                const ConstTensorView& sum,
                                const ConstTensorView& picked,
                                std::span<double> losses);
absl::Status CrossEntropyGradient(const ConstTensorView& largest,
                                  const ConstTensorView& sum, IndexRange held,
                                  std::span<const int64_t> targets,
                                  std::span<const double> scales,
                                  const TensorView& logits);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CROSS_ENTROPY_H_
