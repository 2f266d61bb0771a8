#include "base/extent_allocator.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

// One flag per byte, searched from the start.
class Reference {
 public:
  explicit Reference(int64_t capacity) : used_(capacity) {}

  // Best fit; the lowest address in a tie.
  std::optional<int64_t> Allocate(int64_t bytes, int64_t alignment) {
    if (bytes == 0) return 0;
    std::optional<std::pair<int64_t, int64_t>> best;  // size, start
    for (const auto& [start, end] : FreeRuns()) {
      const int64_t aligned = (start + alignment - 1) / alignment * alignment;
      if (aligned + bytes > end) continue;
      const std::pair<int64_t, int64_t> fit = {end - start, aligned};
      if (!best.has_value() || fit < *best) best = fit;
    }
    if (!best.has_value()) return std::nullopt;
    Set(best->second, bytes, true);
    return best->second;
  }

  bool All(int64_t start, int64_t bytes, bool used) const {
    if (start < 0 || start + bytes > size()) return false;
    return std::count(used_.begin() + start, used_.begin() + start + bytes,
                      used) == bytes;
  }
  void Set(int64_t start, int64_t bytes, bool used) {
    std::fill_n(used_.begin() + start, bytes, used);
  }
  void Grow(int64_t capacity) { used_.resize(capacity); }

  int64_t size() const { return static_cast<int64_t>(used_.size()); }
  std::vector<std::pair<int64_t, int64_t>> FreeRuns() const {
    std::vector<std::pair<int64_t, int64_t>> runs;
    for (int64_t i = 0; i < size(); ++i) {
      if (used_[i]) continue;
      if (i > 0 && !used_[i - 1]) {
        ++runs.back().second;
      } else {
        runs.emplace_back(i, i + 1);
      }
    }
    return runs;
  }

 private:
  std::vector<bool> used_;
};

void ExpectSame(const ExtentAllocator& allocator, const Reference& reference) {
  int64_t free = 0;
  int64_t largest = 0;
  const auto runs = reference.FreeRuns();
  for (const auto& [start, end] : runs) {
    free += end - start;
    largest = std::max(largest, end - start);
  }
  ASSERT_EQ(allocator.capacity(), reference.size());
  ASSERT_EQ(allocator.free_bytes(), free);
  ASSERT_EQ(allocator.largest_free(), largest);
  ASSERT_EQ(allocator.fragments(), static_cast<int64_t>(runs.size()));
  const bool tail_free =
      !runs.empty() && runs.back().second == reference.size();
  ASSERT_EQ(allocator.used_end(),
            tail_free ? runs.back().first : reference.size());
}

TEST(ExtentAllocatorTest, AgreesWithOneFlagPerByteOnRandomCalls) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&random](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    ExtentAllocator allocator(100);
    Reference reference(100);
    for (int step = 0; step < 400; ++step) {
      const int64_t start = below(130) - 5;
      const int64_t bytes = below(20);
      switch (below(4)) {
        case 0:
        case 1: {
          const int64_t alignment = int64_t{1} << below(5);
          ASSERT_EQ(allocator.Allocate(bytes, alignment),
                    reference.Allocate(bytes, alignment));
          break;
        }
        case 2: {
          const bool right = reference.All(start, bytes, true);
          ASSERT_EQ(allocator.Free(start, bytes).ok(), right);
          if (right) reference.Set(start, bytes, false);
          break;
        }
        default:
          if (below(20) == 0 && reference.size() < 200) {
            const int64_t capacity = reference.size() + below(30);
            allocator.Grow(capacity);
            reference.Grow(capacity);
          }
      }
      ExpectSame(allocator, reference);
    }
  }
}

TEST(ExtentAllocatorTest, UsesLastByteAndReusesFreedSpace) {
  ExtentAllocator allocator(10);
  EXPECT_THAT(allocator.Allocate(7, 1), Optional(0));
  EXPECT_THAT(allocator.Allocate(3, 1), Optional(7));
  EXPECT_EQ(allocator.Allocate(1, 1), std::nullopt);
  TESSERA_EXPECT_OK(allocator.Free(2, 3));
  EXPECT_THAT(allocator.Allocate(3, 1), Optional(2));
}

TEST(ExtentAllocatorTest, RejectsMisuseWithoutChanges) {
  ExtentAllocator allocator(10);
  EXPECT_THAT(allocator.Allocate(6, 1), Optional(0));
  TESSERA_ASSERT_OK(allocator.Free(0, 2));
  EXPECT_THAT(
      allocator.Free(1, 2),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("cannot free 2 bytes at 1: some are free already")));
  EXPECT_THAT(allocator.Free(9, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("they lie outside (capacity 10)")));
  EXPECT_EQ(allocator.free_bytes(), 6);
}

}  // namespace
}  // namespace tessera
