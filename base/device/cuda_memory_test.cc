#include "base/device/cuda_memory.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Without a toolkit or a device every function returns the same error.
TEST(CudaMemoryTest, RefusesInOneVoiceWhereThereIsNoDevice) {
  const absl::StatusOr<int> count = CudaDeviceCount();
  if (count.ok()) GTEST_SKIP() << "this machine has a CUDA device";
#ifdef TESSERA_EXPECT_CUDA
  EXPECT_THAT(count, StatusIs(absl::StatusCode::kUnavailable,
                              HasSubstr("count of CUDA devices: cudaError")));
#else
  EXPECT_THAT(count, StatusIs(absl::StatusCode::kUnimplemented,
                              HasSubstr("set CUDA_HOME")));
#endif
  EXPECT_EQ(CudaDeviceMemory(0).status(), count.status());
  EXPECT_EQ(PinnedHostMemory().status(), count.status());
  std::byte a{1}, b{2};
  EXPECT_EQ(CudaCopyBytes(&a, &b, 1), count.status());
  EXPECT_EQ(a, std::byte{1});
  EXPECT_EQ(CudaPin(&a, 1), count.status());
  EXPECT_EQ(CudaUnpin(&a), count.status());
  EXPECT_EQ(CudaMemoryUseOf(0).status(), count.status());
}

class CudaMemoryDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> count = CudaDeviceCount();
    if (!count.ok()) GTEST_SKIP() << "no CUDA device: " << count.status();
  }
};

std::vector<std::byte> RandomBytes(size_t count) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST_F(CudaMemoryDeviceTest, BytesSurviveTheWayThroughPinnedAndDeviceMemory) {
  const std::vector<std::byte> source = RandomBytes(1'000'003);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto device, CudaDeviceMemory(0));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto pinned, PinnedHostMemory());
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer a,
                               Buffer::Allocate(pinned, source.size()));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer b,
                               Buffer::Allocate(device, source.size()));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer c,
                               Buffer::Allocate(device, source.size()));
  EXPECT_EQ(a.kind(), MemoryKind::kPinnedHost);
  EXPECT_EQ(b.kind(), MemoryKind::kCudaDevice);
  EXPECT_EQ(b.device_ordinal(), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0);
  std::vector<std::byte> target(source.size());
  TESSERA_ASSERT_OK(CudaCopyBytes(a.data(), source.data(), source.size()));
  TESSERA_ASSERT_OK(CudaCopyBytes(b.data(), a.data(), source.size()));
  TESSERA_ASSERT_OK(CudaCopyBytes(c.data(), b.data(), source.size()));
  TESSERA_ASSERT_OK(CudaCopyBytes(target.data(), c.data(), source.size()));
  EXPECT_EQ(target, source);
}

TEST_F(CudaMemoryDeviceTest, RefusesMoreThanTheDeviceHasAndGoesOn) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto device, CudaDeviceMemory(0));
  EXPECT_THAT(Buffer::Allocate(device, size_t{1} << 50),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1125899906842624 bytes")));
  TESSERA_EXPECT_OK(Buffer::Allocate(device, 1 << 20));
}

TEST_F(CudaMemoryDeviceTest, CountsWhatIsAllocated) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  TESSERA_ASSERT_OK_AND_ASSIGN(const CudaMemoryUse before, CudaMemoryUseOf(0));
  EXPECT_GT(before.free, kBytes);
  EXPECT_LE(before.free, before.total);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto device, CudaDeviceMemory(0));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer, Buffer::Allocate(device, kBytes));
  TESSERA_ASSERT_OK_AND_ASSIGN(const CudaMemoryUse after, CudaMemoryUseOf(0));
  EXPECT_EQ(after.total, before.total);
  EXPECT_LE(after.free, before.free - kBytes);
}

TEST_F(CudaMemoryDeviceTest, PinsMemoryOnceAndUnpinsIt) {
  std::vector<std::byte> memory(1 << 20);
  TESSERA_ASSERT_OK(CudaPin(memory.data(), memory.size()));
  EXPECT_FALSE(CudaPin(memory.data(), memory.size()).ok());
  TESSERA_EXPECT_OK(CudaUnpin(memory.data()));
  EXPECT_FALSE(CudaUnpin(memory.data()).ok());
  TESSERA_EXPECT_OK(CudaPin(memory.data(), memory.size()));
  TESSERA_EXPECT_OK(CudaUnpin(memory.data()));
}

TEST_F(CudaMemoryDeviceTest, RefusesOtherDevicesAndWideAlignments) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const int count, CudaDeviceCount());
  for (int ordinal : {-1, count}) {
    EXPECT_THAT(
        CudaDeviceMemory(ordinal),
        StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("expected 0 to")));
    EXPECT_THAT(
        CudaMemoryUseOf(ordinal),
        StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("expected 0 to")));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(auto pinned, PinnedHostMemory());
  EXPECT_THAT(
      Buffer::Allocate(pinned, 64, 4096),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 256")));
}

}  // namespace
}  // namespace tessera
