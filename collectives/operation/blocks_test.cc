#include "collectives/operation/blocks.h"

#include <vector>

#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(BlocksTest, BalancedBlocksDifferByAtMostOne) {
  for (int64_t ranks = 1; ranks <= 20; ++ranks) {
    for (int64_t total = 0; total <= 90; ++total) {
      const Blocks blocks = Blocks::Balanced(ranks, total);
      int64_t next = 0;
      for (int64_t i = 0; i < ranks; ++i) {
        EXPECT_EQ(blocks.offset(i), next);
        EXPECT_GE(blocks.count(i), total / ranks);
        EXPECT_LE(blocks.count(i), total / ranks + 1);
        next += blocks.count(i);
      }
      EXPECT_EQ(next, total);
      EXPECT_EQ(blocks.total(), total);
      EXPECT_EQ(blocks.largest(), (total + ranks - 1) / ranks);
    }
  }
}

TEST(BlocksTest, EvenBlocksFollowOneAnother) {
  const Blocks blocks = Blocks::Even(4, int64_t{1} << 40);
  EXPECT_EQ(blocks.total(), int64_t{1} << 42);
  EXPECT_EQ(blocks.offset(3), int64_t{3} << 40);
  EXPECT_EQ(blocks.count(3), int64_t{1} << 40);
}

TEST(BlocksTest, GivenCountsMayBeZero) {
  const Blocks blocks = Blocks::Of(std::vector<int64_t>{3, 0, 5, 0});
  EXPECT_EQ(blocks.ranks(), 4);
  EXPECT_EQ(blocks.offset(1), 3);
  EXPECT_EQ(blocks.count(1), 0);
  EXPECT_EQ(blocks.offset(2), 3);
  EXPECT_EQ(blocks.offset(3), 8);
  EXPECT_EQ(blocks.total(), 8);
  EXPECT_EQ(blocks.largest(), 5);
}

}  // namespace
}  // namespace tessera::collectives
