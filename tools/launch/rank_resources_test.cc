#include "tools/launch/rank_resources.h"

#include <sys/resource.h>

#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CoreBindingTest, GroupsHardwareThreadsByCore) {
  const auto half = [](int cpu) { return std::to_string(cpu % 4); };
  EXPECT_THAT(GroupByCore({0, 1, 2, 4, 5, 7}, half),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2),
                          ElementsAre(7)));
  EXPECT_THAT(GroupByCore({}, half), IsEmpty());
}

TEST(CoreBindingTest, GivesEachRankACoreOrFails) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto one, CoresForRanks(1));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_FALSE(one[0].empty());
  EXPECT_THAT(CoresForRanks(100000),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("100000 ranks need a core each, but this "
                                 "process may use ")));
}

TEST(DescriptorLimitTest, RaisesTheSoftLimitAndPutsItBack) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = 50;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto raised,
                                 DescriptorLimit::Raise(100));
    EXPECT_EQ(raised->original().rlim_cur, 50u);
    rlimit now;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, 100u);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto lower, DescriptorLimit::Raise(10));
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
    EXPECT_EQ(now.rlim_cur, 100u);
  }
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, 50u);
  if (limit.rlim_max == RLIM_INFINITY) return;
  EXPECT_THAT(
      DescriptorLimit::Raise(limit.rlim_max + 1),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("ulimit -Hn")));
}

}  // namespace
}  // namespace tessera::tools
