#include "tools/comm_bench/bench_case.h"

#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

TEST(BatchTest, ABatchTakesFortyMicrosecondsOrMore) {
  EXPECT_EQ(BatchFor(1e-3), 1);
  EXPECT_EQ(BatchFor(40e-6), 1);
  EXPECT_EQ(BatchFor(39e-6), 2);
  EXPECT_EQ(BatchFor(4.1e-6), 10);
  EXPECT_EQ(BatchFor(1e-9), 64);
  EXPECT_EQ(BatchFor(0), 64);
}

TEST(MedianTest, IsOfTheSlowestRankOfEachIteration) {
  EXPECT_DOUBLE_EQ(MedianOfSlowest({{1, 5, 2}, {4, 1, 3}}), 4);
  EXPECT_DOUBLE_EQ(MedianOfSlowest({{1, 2, 3, 4}}), 2.5);
  EXPECT_DOUBLE_EQ(MedianOfSlowest({{7}}), 7);
  EXPECT_DOUBLE_EQ(MedianOfSlowest({{}}), 0);
}

}  // namespace
}  // namespace tessera::tools
