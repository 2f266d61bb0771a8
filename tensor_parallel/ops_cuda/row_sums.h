// Kernels with sums over rows or columns: RmsNorm, AddRmsNorm and their
// gradients, SumRows, RowDots and Sum of ops.h.
//
// A row is summed by a block, in an order that depends on its length alone.
// Columns are summed in two passes: blocks of rows, then their partial sums in
// order. Bound by memory.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROW_SUMS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROW_SUMS_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

absl::Status RmsNorm(KernelStream stream, double epsilon,
                     const ConstTensorView& x, const ConstTensorView& weight,
                     const TensorView& y, const TensorView& inverse);
absl::Status RmsNormInputGradient(KernelStream stream,
                                  const ConstTensorView& gradient,
                                  const ConstTensorView& x,
                                  const ConstTensorView& weight,
                                  const ConstTensorView& inverse,
                                  const TensorView& x_gradient);
absl::Status AddRmsNorm(KernelStream stream, double epsilon,
                        const ConstTensorView& residual,
                        const ConstTensorView& weight, const TensorView& x,
                        const TensorView& y, const TensorView& inverse);
absl::Status AddRmsNormInputGradient(KernelStream stream,
                                     const ConstTensorView& gradient,
                                     const ConstTensorView& x,
                                     const ConstTensorView& weight,
                                     const ConstTensorView& inverse,
                                     const ConstTensorView& residual_gradient,
                                     const TensorView& x_gradient);
// These two use a statistic of scratch for each column and up to 128 parts.
absl::Status RmsNormWeightGradient(KernelStream stream, Scratch& scratch,
                                   const ConstTensorView& gradient,
                                   const ConstTensorView& x,
                                   const ConstTensorView& inverse,
                                   const TensorView& weight_gradient);
absl::Status SumRows(KernelStream stream, Scratch& scratch,
                     const ConstTensorView& gradient,
                     const TensorView& bias_gradient);

absl::Status RowDots(KernelStream stream, const ConstTensorView& output,
                     const ConstTensorView& output_gradient,
                     const TensorView& dots);

// One thread adds in the order of x: the bits of the CPU.
absl::Status Sum(KernelStream stream, double factor, const ConstTensorView& x,
                 const TensorView& total);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROW_SUMS_H_
