// CreateTestGpu: the GPU of tests.
//
//   absl::StatusOr<std::shared_ptr<CudaDevice>> gpu = CreateTestGpu();
//   if (absl::IsUnavailable(gpu.status())) GTEST_SKIP() << gpu.status();
//   TESSERA_ASSERT_OK(gpu);
//
// Its arena has the size of the environment variable TESSERA_TEST_ARENA_BYTES,
// 1 GiB by default. With 0 each request is an allocation of its own, so that
// compute-sanitizer sees accesses beyond it:
//
//   TESSERA_TEST_ARENA_BYTES=0 compute-sanitizer ./cuda_ops_gpu_test
#ifndef TESSERA_BASE_DEVICE_TESTING_TEST_GPU_H_
#define TESSERA_BASE_DEVICE_TESTING_TEST_GPU_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "base/device/cuda_device.h"

namespace tessera {

// InvalidArgument, with the value, if the variable is not a number of bytes.
absl::StatusOr<size_t> TestArenaBytes();

// Unavailable without a GPU, a driver or the toolkit, which skips a test; other
// errors are those of TestArenaBytes and CudaDevice::Create.
absl::StatusOr<std::shared_ptr<CudaDevice>> CreateTestGpu();

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_TESTING_TEST_GPU_H_
