// CreateTestGpu: creates the GPU device of tests.
//
//   absl::StatusOr<std::shared_ptr<CudaDevice>> gpu = CreateTestGpu();
//   if (absl::IsUnavailable(gpu.status())) GTEST_SKIP() << gpu.status();
//   TESSERA_ASSERT_OK(gpu);
//
// The environment variable TESSERA_TEST_ARENA_BYTES sets the size of its arena,
// 1 GiB by default. With 0 each request is a separate allocation, so that
// compute-sanitizer detects accesses past its end:
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

// Returns Unavailable, on which tests skip, without a GPU, a driver or the
// toolkit; otherwise the errors of TestArenaBytes and CudaDevice::Create.
absl::StatusOr<std::shared_ptr<CudaDevice>> CreateTestGpu();

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_TESTING_TEST_GPU_H_
