// Kernels of operands in fp8: CastTranspose and UpdateScales of ops.h.
//
// Bound by memory: a block casts a tile of 64 x 64 and transposes it in shared
// memory, 16 bytes an access where rows are aligned. Both give the bits of the
// CPU.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_FP8_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_FP8_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// Unimplemented for more than 2^31 tiles.
absl::Status CastTranspose(KernelStream stream, const ConstTensorView& x,
                           const ConstTensorView& scale, const TensorView& amax,
                           const TensorView& y, const TensorView& transposed);

absl::Status UpdateScales(KernelStream stream, int margin,
                          const ConstTensorView& largest,
                          const TensorView& amax, const TensorView& history,
                          const TensorView& scale, const TensorView& inverse);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_FP8_H_
