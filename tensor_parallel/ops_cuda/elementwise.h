// Elementwise kernels: Copy, Add, Scale, Fill, Cast, AddBias, Dropout, Glu,
// GluGradient and Rotate of ops.h.
//
// Bound by memory: each element is read and written once, 16 bytes an access
// where rows are aligned and have whole packs. All but Glu and Rotate give
// the bits of the CPU.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_ELEMENTWISE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_ELEMENTWISE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/glu.h"
#include "tensor_parallel/ops/rotary.h"
#include "tensor_parallel/random/philox.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// Any strides, up to 6 dimensions after merging those that are contiguous.
absl::Status Copy(KernelStream stream, const ConstTensorView& x,
                  const TensorView& y);

absl::Status Add(KernelStream stream, const ConstTensorView& x,
                 const TensorView& y);
absl::Status Scale(KernelStream stream, double factor, const TensorView& x);
absl::Status Fill(KernelStream stream, double value, const TensorView& x);
absl::Status Cast(KernelStream stream, const ConstTensorView& x,
                  const TensorView& y);
absl::Status AddBias(KernelStream stream, const ConstTensorView& bias,
                     const TensorView& x);

// `rows` is in memory of the kernels: the number of each row of x.
absl::Status Dropout(KernelStream stream, const RandomKey& key,
                     double probability, const int64_t* rows,
                     const TensorView& x);

absl::Status Glu(KernelStream stream, GluKind kind, const ConstTensorView& gate,
                 const ConstTensorView& up, const TensorView& y);
absl::Status GluGradient(KernelStream stream, GluKind kind,
                         const ConstTensorView& gradient,
                         const ConstTensorView& gate, const ConstTensorView& up,
                         const TensorView& gate_gradient,
                         const TensorView& up_gradient);

// A block for each token computes its angles in f64.
absl::Status Rotate(KernelStream stream, const RotaryFrequencies& frequencies,
                    bool inverse, const ConstTensorView& positions,
                    const TensorView& x);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_ELEMENTWISE_H_
