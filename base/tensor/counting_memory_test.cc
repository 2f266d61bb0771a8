#include "base/tensor/counting_memory.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Access = CountingMemory::Access;

int64_t ResidentPages() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident;
}

TEST(CountingMemoryTest, CountsLiveAndPeakBytes) {
  const auto memory = std::make_shared<CountingMemory>();
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer a, Buffer::Allocate(memory, 100));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer b,
                                 Buffer::Allocate(memory, 5000));
    EXPECT_EQ(memory->live_bytes(), 5100);
  }
  EXPECT_EQ(memory->live_bytes(), 0);
  EXPECT_EQ(memory->peak_bytes(), 5100);
  memory->ResetPeak();
  EXPECT_EQ(memory->peak_bytes(), 0);
}

// Far more than any machine has; nothing is allocated.
TEST(CountingMemoryTest, UsesNoPhysicalMemory) {
  const auto memory = std::make_shared<CountingMemory>();
  const int64_t before = ResidentPages();
  std::vector<Buffer> buffers;
  for (int i = 0; i < 64; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(buffers.emplace_back(),
                                 Buffer::Allocate(memory, size_t{1} << 34));
  }
  EXPECT_EQ(memory->live_bytes(), int64_t{1} << 40);
  EXPECT_LT(ResidentPages() - before, 1000);
}

TEST(CountingMemoryTest, BlocksAreDisjointAlignedAndOwned) {
  const auto memory = std::make_shared<CountingMemory>();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer a, Buffer::Allocate(memory, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer b, Buffer::Allocate(memory, 4097));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer c, Buffer::Allocate(memory, 64));
  for (const Buffer* buffer : {&a, const_cast<const Buffer*>(&b), &c}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    EXPECT_TRUE(memory->Owns(buffer->data()));
  }
  EXPECT_GE(b.data() - a.data(), 1);
  EXPECT_GE(c.data() - b.data(), 4097);
  int other = 0;
  EXPECT_FALSE(memory->Owns(&other));
  EXPECT_FALSE(memory->Owns(nullptr));
  // Freed addresses are reused.
  const std::byte* const address = b.data();
  b = Buffer();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer d, Buffer::Allocate(memory, 5000));
  EXPECT_EQ(d.data(), address);
}

TEST(CountingMemoryTest, ReadsAsZerosAndMayBeWritten) {
  const auto memory = std::make_shared<CountingMemory>(Access::kZeros);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer, Buffer::Allocate(memory, 10000));
  EXPECT_EQ(buffer.bytes()[9999], std::byte{0});
  buffer.bytes()[9999] = std::byte{7};
  EXPECT_EQ(buffer.bytes()[9999], std::byte{7});
}

TEST(CountingMemoryDeathTest, TrapsAccess) {
  const auto memory = std::make_shared<CountingMemory>(Access::kTrapped);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer, Buffer::Allocate(memory, 10));
  EXPECT_DEATH(buffer.bytes()[3] = std::byte{1}, "");
}

TEST(CountingMemoryTest, RejectsUnaddressableSizes) {
  const auto memory = std::make_shared<CountingMemory>();
  EXPECT_THAT(Buffer::Allocate(memory, size_t{1} << 50),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("cannot count")));
  EXPECT_THAT(Buffer::Allocate(memory, 64, 8192),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(memory->live_bytes(), 0);
}

TEST(CountingMemoryTest, CountsForManyThreads) {
  const auto memory = std::make_shared<CountingMemory>();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 1; i < 2000; ++i) {
        TESSERA_ASSERT_OK(Buffer::Allocate(memory, i * 100).status());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory->live_bytes(), 0);
  EXPECT_GE(memory->peak_bytes(), 199'900);
}

}  // namespace
}  // namespace tessera
