// TESSERA_HOST_DEVICE: marks a function that nvcc also compiles for the device.
//
//   TESSERA_HOST_DEVICE constexpr int Twice(int x) { return 2 * x; }
//
// Means nothing to any other compiler.
#ifndef TESSERA_BASE_DTYPE_HOST_DEVICE_H_
#define TESSERA_BASE_DTYPE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif

#endif  // TESSERA_BASE_DTYPE_HOST_DEVICE_H_
