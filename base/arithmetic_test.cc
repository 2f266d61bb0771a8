#include "base/arithmetic.h"

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ArithmeticTest, RoundsUp) {
  EXPECT_EQ(CeilDiv(int64_t{0}, 4), 0);
  EXPECT_EQ(CeilDiv(int64_t{8}, 4), 2);
  EXPECT_EQ(CeilDiv(int64_t{9}, 4), 3);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CeilDiv(kMost, 2), kMost / 2 + 1);
  EXPECT_EQ(CeilDiv(kMost, kMost), 1);
  EXPECT_EQ(RoundUp(size_t{0}, 64), 0u);
  EXPECT_EQ(RoundUp(size_t{64}, 64), 64u);
  EXPECT_EQ(RoundUp(size_t{65}, 64), 128u);
  EXPECT_EQ(RoundUp(int64_t{10}, 3), 12);
}

TEST(ArithmeticTest, MedianIsInTheMiddle) {
  EXPECT_EQ(Median({4, 5, 3}), 4);
  EXPECT_EQ(Median({1, 2, 3, 4}), 2.5);
  EXPECT_EQ(Median({7}), 7);
  EXPECT_EQ(Median({}), 0);
}

}  // namespace
}  // namespace tessera
