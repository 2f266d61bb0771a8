// The norms of ops/ops.h on the CPU: RMSNorm and LayerNorm, one algorithm with
// and without a mean. Memory-bound; in the calling thread. Sums are taken in
// statistics, variances around the mean. y and the gradient of x may be x or
// the gradient; other tensors must not overlap.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_NORMS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_NORMS_H_

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {

absl::Status RmsNorm(double epsilon, const ConstTensorView& x,
                     const ConstTensorView& weight, const TensorView& y,
                     const TensorView& inverse);
absl::Status RmsNormInputGradient(const ConstTensorView& gradient,
                                  const ConstTensorView& x,
                                  const ConstTensorView& weight,
                                  const ConstTensorView& inverse,
                                  const TensorView& x_gradient);
absl::Status RmsNormWeightGradient(const ConstTensorView& gradient,
                                   const ConstTensorView& x,
                                   const ConstTensorView& inverse,
                                   const TensorView& weight_gradient);

absl::Status LayerNorm(double epsilon, const ConstTensorView& x,
                       const ConstTensorView& weight,
                       const ConstTensorView& bias, const TensorView& y,
                       const TensorView& mean, const TensorView& inverse);
absl::Status LayerNormInputGradient(const ConstTensorView& gradient,
                                    const ConstTensorView& x,
                                    const ConstTensorView& weight,
                                    const ConstTensorView& mean,
                                    const ConstTensorView& inverse,
                                    const TensorView& x_gradient);
absl::Status LayerNormWeightGradient(const ConstTensorView& gradient,
                                     const ConstTensorView& x,
                                     const ConstTensorView& mean,
                                     const ConstTensorView& inverse,
                                     const TensorView& weight_gradient);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_NORMS_H_
