#include "tools/text/permutation.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <set>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::text {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> OrderOf(int64_t size, uint64_t key) {
  const Permutation order = *Permutation::Create(size, key);
  std::vector<int64_t> images;
  for (int64_t i = 0; i < size; ++i) images.push_back(order(i));
  return images;
}

TEST(PermutationTest, EverySizeHasEachElementOnce) {
  for (int64_t size = 0; size <= 700; ++size) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      std::vector<int64_t> images = OrderOf(size, key);
      std::sort(images.begin(), images.end());
      std::vector<int64_t> all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(images, all) << size;
    }
  }
  std::vector<bool> seen(1'000'003);
  for (const int64_t image : OrderOf(1'000'003, 5)) {
    ASSERT_FALSE(seen[static_cast<size_t>(image)]);
    seen[static_cast<size_t>(image)] = true;
  }
}

TEST(PermutationTest, OrdersAreStableAcrossVersions) {
  EXPECT_THAT(OrderOf(8, 1), ElementsAre(4, 5, 7, 0, 1, 2, 6, 3));
  EXPECT_THAT(OrderOf(11, 7), ElementsAre(5, 2, 8, 10, 1, 0, 6, 9, 4, 3, 7));
}

TEST(PermutationTest, SmallOrdersAreAllReached) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t key = 0; key < 2000; ++key) orders.insert(OrderOf(4, key));
  EXPECT_EQ(orders.size(), 24u);
}

// Expectations for a random order: one fixed point; half of the neighbours
// ascend; half of the elements stay in their half.
TEST(PermutationTest, OrdersLookRandom) {
  constexpr int64_t kSize = 10'007;
  double fixed = 0;
  for (uint64_t key = 0; key < 50; ++key) {
    const std::vector<int64_t> images = OrderOf(kSize, key);
    int64_t ascents = 0, same_half = 0, near = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      const int64_t image = images[static_cast<size_t>(i)];
      fixed += image == i ? 1 : 0;
      same_half += (i < kSize / 2) == (image < kSize / 2) ? 1 : 0;
      if (i + 1 == kSize) continue;
      const int64_t next = images[static_cast<size_t>(i) + 1];
      ascents += next > image ? 1 : 0;
      near += std::abs(next - image) < 100 ? 1 : 0;
    }
    // Five standard deviations: sqrt(n / 12), sqrt(n / 4), sqrt(0.02 n).
    EXPECT_NEAR(static_cast<double>(ascents), kSize / 2.0, 5 * 29);
    EXPECT_NEAR(static_cast<double>(same_half), kSize / 2.0, 5 * 50);
    EXPECT_NEAR(static_cast<double>(near), kSize * 0.02, 5 * 14.5);
  }
  EXPECT_NEAR(fixed / 50, 1, 0.8);
}

TEST(PermutationTest, HugeSizesNeedNoMemory) {
  const Permutation order = *Permutation::Create(int64_t{1} << 62, 3);
  std::set<int64_t> images;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t image = order((int64_t{1} << 62) - 1 - i);
    EXPECT_GE(image, 0);
    EXPECT_LT(image, order.size());
    images.insert(image);
  }
  EXPECT_EQ(images.size(), 1000u);
  for (const int64_t size : {int64_t{-1}, (int64_t{1} << 62) + 1}) {
    EXPECT_THAT(Permutation::Create(size, 0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("from 0 to 2^62")));
  }
}

}  // namespace

}  // namespace tessera::text
