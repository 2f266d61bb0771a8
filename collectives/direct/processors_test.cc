#include "collectives/direct/processors.h"

#include <sched.h>

#include "gtest/gtest.h"

namespace tessera::collectives::direct {
namespace {

TEST(ProcessorsTest, ReadsTheQuotaOfACgroup) {
  EXPECT_EQ(ParseCpuMax("200000 100000\n"), 2);
  EXPECT_EQ(ParseCpuMax("150000 100000"), 2);
  EXPECT_EQ(ParseCpuMax("50000 100000"), 1);
  EXPECT_EQ(ParseCpuMax("max 100000\n"), 0);
  for (const char* other : {"", "7", "x y", "-1 100000", "100000 0", "1 2 3"}) {
    EXPECT_EQ(ParseCpuMax(other), 0) << other;
  }
}

TEST(ProcessorsTest, IsAtMostTheAffinityMask) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const int64_t before = AvailableProcessors();
  EXPECT_GE(before, 1);
  EXPECT_LE(before, CPU_COUNT(&all));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AvailableProcessors(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

}  // namespace
}  // namespace tessera::collectives::direct
