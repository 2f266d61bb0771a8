#include "collectives/bootstrap/store.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(JobMemberTest, SaysWhereARankIs) {
  EXPECT_EQ(DescribeMember({Rank(2)}), "rank 2 never joined the job");
  EXPECT_EQ(DescribeMember({Rank(1), MemberState::kPresent, "host a, pid 9"}),
            "rank 1 (host a, pid 9) has not come");
  EXPECT_EQ(DescribeMember({Rank(4), MemberState::kLeft, "host a, pid 7"}),
            "rank 4 (host a, pid 7) has left the job");
  EXPECT_EQ(
      DescribeMember({Rank(3), MemberState::kLost, DescribePlace("b", 12)}),
      "rank 3 (host b, pid 12) is lost: its connection broke, most "
      "likely because it died");
}

TEST(AbsenceTest, ListsTheAbsent) {
  EXPECT_EQ(DescribeMissing({}), "nobody");
  EXPECT_EQ(DescribeMissing({1, {{Rank(2)}}}), "rank 2 never joined the job");
  EXPECT_EQ(DescribeMissing({2, {{Rank(2)}, {Rank(5)}}}),
            "rank 2 never joined the job and rank 5 never joined the job");
  EXPECT_EQ(DescribeMissing({2, {{Rank(2)}}}),
            "rank 2 never joined the job and 1 more rank");
  EXPECT_EQ(DescribeMissing({9, {{Rank(2)}, {Rank(3)}}}),
            "rank 2 never joined the job, rank 3 never joined the job and 7 "
            "more ranks");
}

TEST(AbsenceTest, ListsOnlyTheGoneWhereThereAreAny) {
  EXPECT_EQ(
      DescribeMissing({30, {{Rank(7), MemberState::kLeft, ""}, {Rank(2)}}}),
      "rank 7 has left the job");
}

}  // namespace
}  // namespace tessera::collectives
