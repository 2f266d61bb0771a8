#include "pipeline/proof/action_position.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/proof/testing/schedules.h"

namespace tessera::pipeline {

namespace {

using ::testing::HasSubstr;

TEST(UnitsTest, AreActionsAndPairs) {
  Schedule schedule = FromCsv("0F0,0F1,0B0,0B1\n");
  schedule.ranks[0][1].with_next = true;
  const auto units = UnitsOf(schedule, 0);
  ASSERT_THAT(units, IsOk());
  ASSERT_EQ(units->size(), 3U);
  EXPECT_EQ((*units)[0].size(), 1U);
  ASSERT_EQ((*units)[1].size(), 2U);
  EXPECT_EQ((*units)[1][1].ToString(), "0B0");
  schedule.ranks[0].clear();
  EXPECT_TRUE(UnitsOf(schedule, 0)->empty());
}

TEST(UnitsTest, RejectsHalfPairsAndTriples) {
  Schedule schedule = FromCsv("0F0,0F1,0B0,0B1\n");
  schedule.ranks[0][3].with_next = true;
  EXPECT_THAT(UnitsOf(schedule, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("action 3 (0B1) runs together with the action "
                                 "after it, but is the last")));
  schedule.ranks[0][3].with_next = false;
  schedule.ranks[0][1].with_next = true;
  schedule.ranks[0][2].with_next = true;
  EXPECT_THAT(UnitsOf(schedule, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("action 1 (0F1) runs together with two")));
}

}  // namespace

}  // namespace tessera::pipeline
