// The CUDA kernels of CudaStateOps: sums of gradients and int8 blocks, with the
// same bits as Combine (collectives/reduction) and int8_blocks.h. All are
// memory-bound.
#ifndef TESSERA_ZERO3_STATE_STATE_KERNELS_H_
#define TESSERA_ZERO3_STATE_STATE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "base/dtype/dtype.h"

namespace tessera::zero3::TESSERA_KERNELS {

inline constexpr int kMostSources = 256;

// Encodings of the same number of elements. Passed by value to kernels.
struct Int8Sources {
  const std::byte* encodings[kMostSources];
  int count;
};

// Preconditions: the arguments satisfy the checks of state_operations.h; types
// are f64, f32, bf16 and f16, except that int8 blocks do not support f64.
void LaunchAdd(KernelStream stream, DType dtype, const std::byte* from,
               std::byte* to, int64_t count);
void LaunchEncodeInt8(KernelStream stream, DType dtype, const std::byte* values,
                      int64_t elements, std::byte* encoded);
// Decodes if there is one source and the divisor is 1.
void LaunchSumInt8(KernelStream stream, const Int8Sources& sources,
                   float divisor, DType dtype, int64_t elements,
                   std::byte* values);
void LaunchSumInt8Encoded(KernelStream stream, const Int8Sources& sources,
                          int64_t elements, std::byte* encoded);

}  // namespace tessera::zero3::TESSERA_KERNELS

#endif  // TESSERA_ZERO3_STATE_STATE_KERNELS_H_
