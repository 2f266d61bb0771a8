#include <cstddef>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "base/tensor/cuda/cuda_memory.h"
#include "base/tensor/memory.h"
#include "gtest/gtest.h"
#include "offload/cuda/cuda_pinning.h"
#include "offload/cuda/cuda_source.h"

namespace tessera::offload {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

bool HasDevice() { return CudaDeviceCount().ok(); }

TEST(CudaSourceTest, SaysWhyThereIsNone) {
  if (HasDevice()) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_EQ(CudaSource(0).status(), CudaDeviceCount().status());
}

TEST(CudaSourceTest, RisesWithWhatIsAllocated) {
  if (!HasDevice()) GTEST_SKIP() << CudaDeviceCount().status();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto source, CudaSource(0));
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryReading before, source->Read());
  ASSERT_EQ(before.limits.size(), 1u);
  EXPECT_EQ(before.limits[0].source, "cuda:0");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto memory, CudaDeviceMemory(0));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Buffer buffer,
      Buffer::Allocate(memory, static_cast<size_t>(256 * kMiB)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryReading after, source->Read());
  EXPECT_GE(after.limits[0].used, before.limits[0].used + 256 * kMiB);
  EXPECT_EQ(after.limits[0].limit, before.limits[0].limit);
}

TEST(CudaPinningTest, PinsWhereThereIsADeviceAndGoesOnWhereThereIsNone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto arena,
      PinnedArena::Create({.cap = 4 * kMiB, .pinning = CudaPinning()}));
  EXPECT_EQ(arena->pinned(), HasDevice());
  EXPECT_EQ(arena->kind(),
            HasDevice() ? MemoryKind::kPinnedHost : MemoryKind::kHost);
  if (!HasDevice()) {
    EXPECT_EQ(arena->pin_status().code(), CudaDeviceCount().status().code());
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer, Buffer::Allocate(arena, 1000));
  buffer.data()[999] = std::byte{7};
}

}  // namespace
}  // namespace tessera::offload
