// CudaDevice on a GPU.
#include <memory>

#include "absl/status/status.h"
#include "base/device/cuda_device.h"
#include "base/device/testing/device_conformance.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// Returns Unavailable, on which tests skip, without a GPU.
DeviceFactory WithArena(size_t bytes) {
  return [bytes]() -> absl::StatusOr<std::shared_ptr<Device>> {
    auto device = CudaDevice::Create({.arena_bytes = bytes});
    if (absl::IsUnimplemented(device.status())) {
      return absl::UnavailableError(device.status().message());
    }
    return device;
  };
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceConformanceTest,
                         ::testing::Values(WithArena(0), WithArena(1 << 24)));

INSTANTIATE_TEST_SUITE_P(Gpu, CaptureConformanceTest,
                         ::testing::Values(WithArena(0)));

TEST(CudaDeviceGpuTest, FindsGpuInUse) {
  const auto devices = FindCudaDevices();
  if (absl::IsNotFound(devices.status()) ||
      absl::IsUnimplemented(devices.status())) {
    GTEST_SKIP() << devices.status();
  }
  TESSERA_ASSERT_OK(devices);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto device, CudaDevice::Create());
  TESSERA_ASSERT_OK_AND_ASSIGN(const CudaMemoryUse use, device->MemoryUse());
  EXPECT_GT(use.free, 0);
  EXPECT_LE(use.free, use.total);
  EXPECT_EQ(devices->front().properties.total_bytes, use.total);
}

TEST(NativeCudaRuntimeTest, PinsMemoryOnceAndUnpinsIt) {
  const auto runtime = NativeCudaRuntime();
  if (!runtime.ok()) GTEST_SKIP() << runtime.status();
  const absl::Status found = (*runtime)->DeviceCount().status();
  if (!found.ok()) GTEST_SKIP() << found;
  std::vector<std::byte> memory(1 << 20);
  TESSERA_ASSERT_OK((*runtime)->Pin(memory.data(), memory.size()));
  EXPECT_FALSE((*runtime)->Pin(memory.data(), memory.size()).ok());
  TESSERA_EXPECT_OK((*runtime)->Unpin(memory.data()));
  EXPECT_FALSE((*runtime)->Unpin(memory.data()).ok());
}

}  // namespace
}  // namespace tessera
