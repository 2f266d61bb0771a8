#include "collectives/shared_memory/shared_memory_domain.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::HasSubstr;

// A waiting child with a copy of this process's memory.
class ReadProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < data_.size(); ++i) {
      data_[i] = static_cast<std::byte>(i * 7);
    }
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      while (true) pause();
    }
    std::memset(data_.data(), 0, data_.size());
    if (!MayReadProcess(child_)) GTEST_SKIP() << "not allowed here";
  }
  void TearDown() override { End(); }
  void End() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  uintptr_t At(size_t i) const {
    return reinterpret_cast<uintptr_t>(data_.data() + i);
  }

  std::vector<std::byte> data_ = std::vector<std::byte>(300'001);
  pid_t child_ = 0;
};

TEST_F(ReadProcessTest, CopiesAnyRange) {
  for (const auto& [first, count] : std::vector<std::pair<size_t, size_t>>{
           {0, 0}, {5, 1}, {4095, 2}, {1, 300'000}, {0, 300'001}}) {
    std::vector<std::byte> copy(count);
    ASSERT_THAT(ReadProcess(child_, At(first), copy.data(),
                            static_cast<int64_t>(count)),
                IsOk());
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(copy[i], static_cast<std::byte>((first + i) * 7));
    }
  }
}

TEST_F(ReadProcessTest, UnmappedMemoryIsUnavailable) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // Two pages that only this process has, because the child was forked earlier.
  void* const later = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(later, MAP_FAILED);
  std::vector<std::byte> copy(2 * page);
  EXPECT_THAT(ReadProcess(child_, reinterpret_cast<uintptr_t>(later),
                          copy.data(), static_cast<int64_t>(copy.size())),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("stopped after 0: Bad address")));
  munmap(later, 2 * page);
}

TEST_F(ReadProcessTest, ExitedProcessIsUnavailable) {
  const pid_t gone = child_;
  End();
  EXPECT_FALSE(MayReadProcess(gone));
  std::byte copy;
  EXPECT_THAT(
      ReadProcess(gone, At(0), &copy, 1),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("No such process")));
}

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

TEST_F(SliceAllocatorTest, AllocatesDisjointZeroedAlignedMemory) {
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

TEST_F(SliceAllocatorTest, ReturnsLargeMemoryToSystem) {
  SliceAllocator allocator = Allocator(0);
  TESSERA_ASSERT_OK_AND_ASSIGN(std::byte* const first,
                               allocator.Allocate(8 << 20));
  EXPECT_EQ(allocator.reserved_bytes(), 8 << 20);
  allocator.Free(first);
  EXPECT_EQ(allocator.reserved_bytes(), 0);
  // The slice is in one piece again.
  EXPECT_THAT(allocator.Allocate(kSlice).status(), IsOk());
}

TEST_F(SliceAllocatorTest, ContinuesAfterRejectingTooLargeAllocation) {
  SliceAllocator allocator = Allocator(0, /*limit=*/4 << 20);
  EXPECT_THAT(allocator.Allocate(5 << 20),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("5MiB were requested, 4MiB of this rank's "
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
