// The kernels of CudaConvert, in a header that needs no device compiler.
#ifndef TESSERA_BASE_DEVICE_CUDA_CONVERT_KERNEL_H_
#define TESSERA_BASE_DEVICE_CUDA_CONVERT_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"

namespace tessera {

// Like CudaConvert. Precondition: CudaConvert has checked the arguments;
// `count` is positive.
cudaError_t LaunchConvertKernel(DType from, const void* source, DType to,
                                void* target, int64_t count,
                                cudaStream_t stream, FloatOverflow overflow);

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_CUDA_CONVERT_KERNEL_H_
