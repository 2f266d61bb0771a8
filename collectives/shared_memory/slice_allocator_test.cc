#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "base/status_matchers.h"
#include "collectives/shared_memory/shared_memory_domain.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSlice = 64 << 20;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

class SliceAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(UniqueFd file, CreateSegmentFile(2, kSlice));
    TESSERA_ASSERT_OK_AND_ASSIGN(segment_, Segment::Map(std::move(file), 2));
    ASSERT_EQ(segment_.slice_bytes(), kSlice);
  }
  SliceAllocator Allocator(int64_t rank, int64_t limit = kNoLimit) {
    return SliceAllocator(segment_.fd(), segment_.base(),
                          segment_.SliceStart(rank),
                          segment_.SliceStart(rank + 1), limit);
  }
  bool InSlice(int64_t rank, const std::byte* memory, int64_t bytes) const {
    const int64_t offset = memory - segment_.base();
    return offset >= segment_.SliceStart(rank) &&
           offset + bytes <= segment_.SliceStart(rank + 1);
  }

  Segment segment_;
};

bool IsZero(const std::byte* memory, int64_t bytes) {
  return std::all_of(memory, memory + bytes,
                     [](std::byte b) { return b == std::byte{0}; });
}

TEST_F(SliceAllocatorTest, GivesApartZeroedAlignedMemoryWhateverTheOrder) {
  SliceAllocator allocator = Allocator(1);
  std::mt19937_64 random(7);
  std::map<std::byte*, int64_t> held;
  for (int i = 0; i < 3000; ++i) {
    if (held.size() > 40 || (!held.empty() && random() % 3 == 0)) {
      auto it = held.begin();
      std::advance(it, static_cast<int64_t>(random() % held.size()));
      allocator.Free(it->first);
      held.erase(it);
      continue;
    }
    const int64_t bytes =
        1 +
        static_cast<int64_t>(random() % (random() % 8 == 0 ? 600'000 : 5'000));
    TESSERA_ASSERT_OK_AND_ASSIGN(std::byte* const memory,
                                 allocator.Allocate(bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    ASSERT_TRUE(InSlice(1, memory, bytes));
    ASSERT_TRUE(IsZero(memory, bytes));
    const auto next = held.lower_bound(memory);
    if (next != held.end()) {
      ASSERT_LE(memory + bytes, next->first);
    }
    if (next != held.begin()) {
      const auto previous = std::prev(next);
      ASSERT_LE(previous->first + previous->second, memory);
    }
    std::memset(memory, 0xff, static_cast<size_t>(bytes));
    held[memory] = bytes;
  }
}

TEST_F(SliceAllocatorTest, LargeMemoryGoesBackToTheMachine) {
  SliceAllocator allocator = Allocator(0);
  TESSERA_ASSERT_OK_AND_ASSIGN(std::byte* const first,
                               allocator.Allocate(8 << 20));
  EXPECT_EQ(allocator.reserved_bytes(), 8 << 20);
  allocator.Free(first);
  EXPECT_EQ(allocator.reserved_bytes(), 0);
  // All of the slice is in one piece again.
  EXPECT_THAT(allocator.Allocate(kSlice).status(), IsOk());
}

TEST_F(SliceAllocatorTest, RefusesWhatIsNotThereAndGoesOn) {
  SliceAllocator allocator = Allocator(0, /*limit=*/4 << 20);
  EXPECT_THAT(allocator.Allocate(5 << 20),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("5MiB are asked for, 4MiB of this rank's "
                                 "limit of 4MiB are left")));
  EXPECT_THAT(allocator.Allocate(3 << 20).status(), IsOk());
  EXPECT_THAT(allocator.Allocate(2 << 20),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(allocator.Allocate(100).status(), IsOk());
  SliceAllocator unlimited = Allocator(1);
  EXPECT_THAT(unlimited.Allocate(kSlice + 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("slice of the segment")));
  EXPECT_THAT(unlimited.Allocate(0),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SegmentTest, TakesNoMemoryAndSharesItsBytes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(UniqueFd file,
                               CreateSegmentFile(4, int64_t{64} << 30));
  const int copy = dup(file.get());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Segment a,
                               Segment::Map(std::move(file), 4));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Segment b,
                               Segment::Map(UniqueFd(copy), 4));
  EXPECT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(a.SliceStart(3), 3 * a.slice_bytes());
  a.base()[a.SliceStart(2)] = std::byte{42};
  EXPECT_EQ(b.base()[b.SliceStart(2)], std::byte{42});
}

}  // namespace
}  // namespace tessera::collectives
