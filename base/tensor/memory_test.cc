#include "base/tensor/memory.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Counts allocations and forwards them to host memory.
class CountingMemory final : public MemoryResource {
 public:
  MemoryKind kind() const override { return MemoryKind::kPinnedHost; }
  int device_ordinal() const override { return 7; }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    ++allocations;
    live += bytes;
    last_alignment = alignment;
    return HostMemory()->Allocate(bytes, alignment);
  }
  void Deallocate(void* data, size_t bytes, size_t alignment) override {
    live -= bytes;
    EXPECT_EQ(alignment, last_alignment);
    HostMemory()->Deallocate(data, bytes, alignment);
  }

  int allocations = 0;
  size_t live = 0;
  size_t last_alignment = 0;
};

TEST(MemoryKindTest, HasNames) {
  EXPECT_EQ(MemoryKindName(MemoryKind::kHost), "host");
  EXPECT_EQ(MemoryKindName(MemoryKind::kPinnedHost), "pinned_host");
  EXPECT_EQ(MemoryKindName(MemoryKind::kDevice), "device");
  EXPECT_TRUE(IsHostAccessible(MemoryKind::kPinnedHost));
  EXPECT_FALSE(IsHostAccessible(MemoryKind::kDevice));
}

TEST(BufferTest, IsAlignedAndWritable) {
  for (size_t alignment : {1, 2, 64, 256, 4096}) {
    for (size_t bytes : {1, 63, 64, 65, 4097}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          Buffer buffer, Buffer::Allocate(HostMemory(), bytes, alignment));
      EXPECT_EQ(buffer.size(), bytes);
      const auto address = reinterpret_cast<uintptr_t>(buffer.data());
      EXPECT_EQ(address % std::max(alignment, kDefaultAlignment), 0);
      std::memset(buffer.data(), 0x5a, bytes);
      EXPECT_EQ(buffer.bytes().back(), std::byte{0x5a});
      EXPECT_EQ(buffer.kind(), MemoryKind::kHost);
      EXPECT_EQ(buffer.device_ordinal(), -1);
    }
  }
}

TEST(BufferTest, EmptyBufferAllocatesNothing) {
  auto memory = std::make_shared<CountingMemory>();
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer, Buffer::Allocate(memory, 0));
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size(), 0);
  EXPECT_EQ(buffer.kind(), MemoryKind::kPinnedHost);
  EXPECT_EQ(buffer.device_ordinal(), 7);
  EXPECT_EQ(memory->allocations, 0);
}

TEST(BufferTest, FreesOnceOnDestructionOrAssignment) {
  auto memory = std::make_shared<CountingMemory>();
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer a, Buffer::Allocate(memory, 100));
    std::byte* const data = a.data();
    Buffer b = std::move(a);
    EXPECT_EQ(b.data(), data);
    EXPECT_EQ(a.data(), nullptr);
    EXPECT_EQ(a.size(), 0);
    EXPECT_EQ(a.kind(), MemoryKind::kHost);
    EXPECT_EQ(memory->live, 100);
    TESSERA_ASSERT_OK_AND_ASSIGN(b, Buffer::Allocate(memory, 10));
    EXPECT_EQ(memory->live, 10);
    Buffer& alias = b;
    b = std::move(alias);
    EXPECT_EQ(b.size(), 10);
  }
  EXPECT_EQ(memory->live, 0);
  EXPECT_EQ(memory->allocations, 2);
}

TEST(BufferTest, KeepsItsResourceAlive) {
  auto memory = std::make_shared<CountingMemory>();
  std::weak_ptr<CountingMemory> watch = memory;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer, Buffer::Allocate(memory, 8));
    memory.reset();
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(BufferTest, RejectsUnrepresentableSizes) {
  for (size_t bytes : {std::numeric_limits<size_t>::max(),
                       std::numeric_limits<size_t>::max() - 63, size_t{1} << 63,
                       (size_t{1} << 56) + 1}) {
    EXPECT_THAT(Buffer::Allocate(HostMemory(), bytes),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr(std::to_string(bytes) + " bytes")));
  }
}

TEST(BufferTest, ReturnsResourceExhaustedWhenOutOfMemory) {
  EXPECT_THAT(Buffer::Allocate(HostMemory(), size_t{1} << 50),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("request less")));
}

TEST(BufferTest, RejectsInvalidAlignmentsAndNullResource) {
  for (size_t alignment : {0, 3, 65}) {
    EXPECT_THAT(Buffer::Allocate(HostMemory(), 8, alignment),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected a power of two")));
  }
  EXPECT_THAT(
      Buffer::Allocate(nullptr, 8),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HostMemory()")));
}

}  // namespace
}  // namespace tessera
