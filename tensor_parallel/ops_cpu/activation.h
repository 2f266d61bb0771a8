// The activations of ops/ops.h on the CPU. Memory-bound where vectors are wide;
// in the calling thread. Outputs may be inputs, and must not overlap otherwise.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ACTIVATION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ACTIVATION_H_

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {

absl::Status SwiGlu(const ConstTensorView& gate, const ConstTensorView& up,
                    const TensorView& y);
absl::Status SwiGluGradient(const ConstTensorView& gradient,
                            const ConstTensorView& gate,
                            const ConstTensorView& up,
                            const TensorView& gate_gradient,
                            const TensorView& up_gradient);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ACTIVATION_H_
