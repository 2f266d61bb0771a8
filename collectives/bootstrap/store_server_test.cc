#include "collectives/bootstrap/store_server.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::HasSubstr;

TEST(RefusalLogTest, LimitsRateAndCountsAll) {
  std::vector<std::string> lines;
  RefusalLog log([&](std::string line) { lines.push_back(std::move(line)); });
  for (int i = 0; i < 1000; ++i) log.Report("host:1", "it is a stranger");
  EXPECT_EQ(lines.size(), 10u);
  EXPECT_EQ(
      lines[0],
      "refused a connection to the job's store: host:1: it is a stranger");
  EXPECT_EQ(log.count(), 1000);
  absl::SleepFor(absl::Milliseconds(1100));
  log.Report("host:2", std::string(10'000, 'w'));
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_THAT(lines[10], HasSubstr("host:2: www"));
  EXPECT_THAT(lines[10], HasSubstr("(and 990 more before)"));
  EXPECT_LT(lines[10].size(), 500u);
}

TEST(RefusalLogTest, CountsWithoutAListener) {
  RefusalLog log(nullptr);
  log.Report("a", "b");
  EXPECT_EQ(log.count(), 1);
}

}  // namespace

}  // namespace tessera::collectives
