// The kernel language: CUDA C++ for nvcc, and the same source for g++ and
// clang, where a CUDA thread is a fiber (emulation.h).
//
//   // scale.cu, built by kernel_library (third_party/cuda/kernel_library.bzl):
//   namespace tessera::TESSERA_KERNELS {  // `native`, or `emulated`.
//   __global__ void ScaleKernel(float factor, float* x, int n) {
//     const int i = blockIdx.x * blockDim.x + threadIdx.x;
//     if (i < n) x[i] *= factor;
//   }
//   void Scale(KernelStream stream, float factor, float* x, int n) {
//     Launch(ScaleKernel, (n + 255) / 256, 256, /*dynamic_shared=*/0, stream,
//            factor, x, n);
//   }
//   }
//
// Three constructs differ from CUDA: static shared memory is
// TESSERA_SHARED(type, name, count), dynamic shared memory is
// TESSERA_DYNAMIC_SHARED(type, name), and a launch is Launch(...).
//
// TESSERA_UNROLL unrolls the loop that follows it, so that arrays that the loop
// indexes can be in registers.
//
// The queue reports launch errors (HostFunction::enqueues in
// base/device/device.h).
#ifndef TESSERA_BASE_CUDA_KERNEL_H_
#define TESSERA_BASE_CUDA_KERNEL_H_

#include "base/cuda/stream.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#define TESSERA_UNROLL _Pragma("unroll")
#define TESSERA_SHARED(type, name, count) __shared__ type name[count]
// All arrays of a kernel share the same memory, whatever their types.
#define TESSERA_DYNAMIC_SHARED(type, name)                        \
  extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared)

namespace tessera::native {

// kernel<<<grid, block, dynamic_shared, stream>>>(arguments...)
template <typename... Parameters, typename... Arguments>
void Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t dynamic_shared, KernelStream stream,
            Arguments&&... arguments) {
  kernel<<<grid, block, dynamic_shared, static_cast<cudaStream_t>(stream)>>>(
      std::forward<Arguments>(arguments)...);
}

}  // namespace tessera::native

#else
#include "base/cuda/testing/emulation.h"
#define TESSERA_UNROLL
#endif

#endif  // TESSERA_BASE_CUDA_KERNEL_H_
