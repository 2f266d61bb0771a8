#include "collectives/bootstrap/seat.h"

#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(SeatTest, SaysWhereARankIs) {
  EXPECT_EQ(DescribeSeat({Rank(2)}), "rank 2 never joined the job");
  EXPECT_EQ(DescribeSeat({Rank(1), SeatState::kPresent, "host a, pid 9"}),
            "rank 1 (host a, pid 9) has not come");
  EXPECT_EQ(DescribeSeat({Rank(4), SeatState::kLeft, "host a, pid 7"}),
            "rank 4 (host a, pid 7) has left the job");
  EXPECT_EQ(DescribeSeat({Rank(3), SeatState::kLost, DescribePlace("b", 12)}),
            "rank 3 (host b, pid 12) is lost: its connection broke, most "
            "likely because it died");
}

TEST(AbsenceTest, ListsTheAbsent) {
  EXPECT_EQ(DescribeAbsence({}), "nobody");
  EXPECT_EQ(DescribeAbsence({1, {{Rank(2)}}}), "rank 2 never joined the job");
  EXPECT_EQ(DescribeAbsence({2, {{Rank(2)}, {Rank(5)}}}),
            "rank 2 never joined the job and rank 5 never joined the job");
  EXPECT_EQ(DescribeAbsence({2, {{Rank(2)}}}),
            "rank 2 never joined the job and 1 more rank");
  EXPECT_EQ(DescribeAbsence({9, {{Rank(2)}, {Rank(3)}}}),
            "rank 2 never joined the job, rank 3 never joined the job and 7 "
            "more ranks");
}

TEST(AbsenceTest, ListsOnlyTheGoneWhereThereAreAny) {
  EXPECT_EQ(DescribeAbsence({30, {{Rank(7), SeatState::kLeft, ""}, {Rank(2)}}}),
            "rank 7 has left the job");
}

}  // namespace
}  // namespace tessera::collectives
