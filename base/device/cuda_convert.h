// CudaConvert: converts arrays of elements on a CUDA device.
//
//   TESSERA_RETURN_IF_ERROR(CudaConvert(DType::kF32, weights, DType::kBF16,
//                                       half, count, stream));
//
// Gives the same bits as Convert (base/dtype/convert.h), NaNs included: both
// compile base/dtype/convert_value.h. Memory-bound: each element is read and
// written once, in accesses of up to 16 bytes if both pointers are aligned
// to 16.
#ifndef TESSERA_BASE_DEVICE_CUDA_CONVERT_H_
#define TESSERA_BASE_DEVICE_CUDA_CONVERT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"

namespace tessera {

// Enqueues the conversion of `count` elements on `stream` of the current device
// and returns at once; a later call on the stream returns execution errors.
// Both pointers must be accessible to the device and aligned for their
// elements, and the ranges must not overlap. InvalidArgument, with nothing
// enqueued, if a dtype is not valid, `count` is negative, a pointer is null
// (unless `count` is 0) or not aligned.
absl::Status CudaConvert(
    DType from, const void* source, DType to, void* target, int64_t count,
    cudaStream_t stream,
    FloatOverflow overflow = FloatOverflow::kInfinityOrNan);

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_CUDA_CONVERT_H_
