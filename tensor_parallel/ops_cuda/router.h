// Kernels of Route, RouteGradient, ScaleRows and ScaleRowsGradient of ops.h. A
// warp has a token, or a row.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROUTER_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROUTER_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

absl::Status Route(KernelStream stream, const RouterOptions& options,
                   const ConstTensorView& logits, const ConstTensorView& bias,
                   const TensorView& weights, const TensorView& experts);
absl::Status RouteGradient(KernelStream stream, const RouterOptions& options,
                           const ConstTensorView& logits,
                           const ConstTensorView& experts,
                           const ConstTensorView& weights_gradient,
                           const ConstTensorView& balance, double z_loss,
                           const TensorView& logits_gradient);
absl::Status ScaleRows(KernelStream stream, const ConstTensorView& scales,
                       const ConstTensorView& x, const TensorView& y);
absl::Status ScaleRowsGradient(KernelStream stream,
                               const ConstTensorView& gradient,
                               const ConstTensorView& scales,
                               const ConstTensorView& x,
                               const TensorView& x_gradient,
                               const TensorView& scales_gradient);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROUTER_H_
