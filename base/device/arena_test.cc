#include "base/device/arena.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ArenaTest, PartsDoNotOverlap) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Arena> arena,
                               Arena::Create(HostMemory(), 1 << 20));
  std::mt19937 random(1);
  std::vector<Buffer> buffers;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 2 == 0 && !buffers.empty()) {
      std::swap(buffers[random() % buffers.size()], buffers.back());
      buffers.pop_back();
      continue;
    }
    const size_t bytes = 1 + random() % (random() % 2 == 0 ? 300 : 40000);
    const size_t alignment = size_t{64} << random() % 7;
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer,
                                 Buffer::Allocate(arena, bytes, alignment));
    const auto address = reinterpret_cast<uintptr_t>(buffer.data());
    EXPECT_EQ(address % alignment, 0u);
    for (const Buffer& other : buffers) {
      EXPECT_TRUE(buffer.data() + bytes <= other.data() ||
                  other.data() + other.size() <= buffer.data());
    }
    std::memset(buffer.data(), 1, bytes);  // Within the arena's memory.
    buffers.push_back(std::move(buffer));
  }
  buffers.clear();
  EXPECT_EQ(arena->used_bytes(), 0);
}

TEST(ArenaTest, MergesFreedParts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Arena> arena,
                               Arena::Create(HostMemory(), 1 << 20));
  for (int round = 0; round < 3; ++round) {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 64; ++i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer,
                                   Buffer::Allocate(arena, 16 << 10));
      buffers.push_back(std::move(buffer));
    }
    std::shuffle(buffers.begin(), buffers.end(), std::mt19937(5));
    buffers.clear();
    TESSERA_ASSERT_OK(Buffer::Allocate(arena, 1 << 20));
    EXPECT_EQ(arena->blocks(), 1);
  }
}

TEST(ArenaTest, AllocatesAnotherBlockWhenFull) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Arena> arena,
                               Arena::Create(HostMemory(), 0));
  EXPECT_EQ(arena->blocks(), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer first,
                               Buffer::Allocate(arena, 4 << 20));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer second,
                               Buffer::Allocate(arena, 9 << 20));
  EXPECT_EQ(arena->blocks(), 2);
  EXPECT_GE(arena->held_bytes(), 13 << 20);
  EXPECT_EQ(arena->used_bytes(), 13 << 20);
}

TEST(ArenaTest, ReturnsErrorOfResource) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Arena> arena,
                               Arena::Create(HostMemory(), 0));
  for (const size_t bytes : {size_t{1} << 60, ~size_t{0}}) {
    EXPECT_THAT(Buffer::Allocate(arena, bytes),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_EQ(arena->blocks(), 0);
}

}  // namespace
}  // namespace tessera
