// The CUDA kernels of CudaStateOps: sums of gradients, int8 blocks, NF4 and
// factored moments, with the same bits as Combine (collectives/reduction),
// int8_blocks.h, the codecs of offload/codec and factored_moments.h. All are
// memory-bound.
#ifndef TESSERA_ZERO3_STATE_STATE_KERNELS_H_
#define TESSERA_ZERO3_STATE_STATE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "base/dtype/dtype.h"
#include "zero3/state/factored_moments.h"

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

// Decodes an encoding of the codec "nf4", or "nf4_double" if `is_double`, of
// `elements` values.
void LaunchDecodeNf4(KernelStream stream, bool is_double,
                     const std::byte* encoded, DType dtype, int64_t elements,
                     std::byte* values);

// The functions of factored_moments.h.
// A null copy is not written.
void LaunchScale(KernelStream stream, DType dtype, double factor,
                 std::byte* values, int64_t count, DType copy_dtype,
                 std::byte* copy);
// `sums` has room for GroupSums(elements) numbers; unused without columns.
int64_t GroupSums(const MatrixElements& elements);
void LaunchSumSquares(KernelStream stream, const MatrixElements& elements,
                      double row_weight, std::byte* rows, double column_weight,
                      std::byte* columns, double* sums);
void LaunchDivideByMean(KernelStream stream, DType dtype, const std::byte* rows,
                        int64_t row_count, double least, std::byte* columns,
                        int64_t column_count);
void LaunchUpdate(KernelStream stream, const MatrixElements& elements,
                  const std::byte* rows, const std::byte* columns, double least,
                  double factor, std::byte* update);

}  // namespace tessera::zero3::TESSERA_KERNELS

#endif  // TESSERA_ZERO3_STATE_STATE_KERNELS_H_
