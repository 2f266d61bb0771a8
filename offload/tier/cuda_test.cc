#include <cstddef>
#include <memory>

#include "base/device/cuda_runtime.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gtest/gtest.h"
#include "offload/tier/cuda_pinning.h"

namespace tessera::offload {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

absl::Status FindDevice() {
  const absl::StatusOr<std::shared_ptr<CudaRuntime>> runtime =
      NativeCudaRuntime();
  return runtime.ok() ? (*runtime)->DeviceCount().status() : runtime.status();
}

bool HasDevice() { return FindDevice().ok(); }

TEST(CudaPinningTest, PinsMemoryIfDeviceExists) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto arena,
      PinnedArena::Create({.cap = 4 * kMiB, .pinning = CudaPinning()}));
  EXPECT_EQ(arena->pinned(), HasDevice());
  EXPECT_EQ(arena->kind(),
            HasDevice() ? MemoryKind::kPinnedHost : MemoryKind::kHost);
  if (!HasDevice()) {
    EXPECT_EQ(arena->pin_status().code(), FindDevice().code());
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer, Buffer::Allocate(arena, 1000));
  buffer.data()[999] = std::byte{7};
}

}  // namespace
}  // namespace tessera::offload
