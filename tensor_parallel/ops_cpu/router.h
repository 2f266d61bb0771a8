// The operations Route and RouteGradient of ops/ops.h on the CPU.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ROUTER_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ROUTER_H_

#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

// Both process some of the tokens. The callers check the arguments.
void RouteTokens(const RouterOptions& options, IndexRange tokens,
                 const ConstTensorView& logits, const ConstTensorView& bias,
                 const TensorView& weights, const TensorView& experts);
void RouteTokensGradient(const RouterOptions& options, IndexRange tokens,
                         const ConstTensorView& logits,
                         const ConstTensorView& experts,
                         const ConstTensorView& weights_gradient,
                         const ConstTensorView& balance, double z_loss,
                         const TensorView& logits_gradient);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ROUTER_H_
