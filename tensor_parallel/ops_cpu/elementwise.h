// The elementwise operations of ops/ops.h on the CPU. Memory-bound: each reads
// and writes every element once, in the calling thread. x and y may be the same
// view, and must not overlap otherwise.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {

absl::Status AddBias(const ConstTensorView& bias, const TensorView& x);
absl::Status SumRows(const ConstTensorView& gradient,
                     const TensorView& bias_gradient);
absl::Status Add(const ConstTensorView& x, const TensorView& y);
absl::Status Scale(double factor, const TensorView& x);
absl::Status Fill(double value, const TensorView& x);
absl::Status Cast(const ConstTensorView& x, const TensorView& y);
absl::Status RowDots(const ConstTensorView& output,
                     const ConstTensorView& output_gradient,
                     const TensorView& dots);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_H_
