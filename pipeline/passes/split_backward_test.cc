#include "pipeline/passes/split_backward.h"

#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/proof/schedules.h"
#include "pipeline/proof/validate.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

TEST(SplitBackwardTest, BecomesInputAndWeightAtOnce) {
  const auto split = SplitBackward(FromCsv("0F0,0B0\n"));
  ASSERT_THAT(split, IsOk());
  EXPECT_EQ(WriteCsv(*split), "0F0,0I0,0W0\n");
}

TEST(SplitBackwardTest, WeightFollowsThePair) {
  Schedule schedule = FromCsv("0F0,0B0,0F1,0B1\n");
  schedule.ranks[0][1].with_next = true;
  const auto split = SplitBackward(schedule);
  ASSERT_THAT(split, IsOk());
  const std::vector<Action> expected = {
      {ActionKind::kForward, 0, 0},
      {ActionKind::kBackwardInput, 0, 0, /*with_next=*/true},
      {ActionKind::kForward, 0, 1},
      {ActionKind::kBackwardWeight, 0, 0},
      {ActionKind::kBackwardInput, 0, 1},
      {ActionKind::kBackwardWeight, 0, 1}};
  EXPECT_EQ(split->ranks[0], expected);
  EXPECT_THAT(MergeBackward(*split), IsOkAndHolds(schedule));
}

TEST(MergeBackwardTest, OnlyNeighboursOfTheSameMicroBatchAndStage) {
  const auto merged = MergeBackward(
      FromCsv("0F0,0F1,0F2,0I0,0I1,0W1,0W0,0I2,0UNSHARD,0W2,0RESHARD\n"));
  ASSERT_THAT(merged, IsOk());
  EXPECT_EQ(WriteCsv(*merged),
            "0F0,0F1,0F2,0I0,0B1,0W0,0I2,0UNSHARD,0W2,0RESHARD\n");
  const auto stages = MergeBackward(FromCsv("0F0,1F0,1I0,0I0,1W0,0W0\n"));
  ASSERT_THAT(stages, IsOk());
  EXPECT_EQ(WriteCsv(*stages), "0F0,1F0,1I0,0I0,1W0,0W0\n");
}

TEST(MergeBackwardTest, UndoesSplitBackward) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 500; ++i) {
    const Schedule schedule =
        RandomOrder(RandomMap(random), static_cast<int32_t>(1 + random() % 5),
                    /*split=*/false, random);
    const auto split = SplitBackward(schedule);
    ASSERT_THAT(split, IsOk());
    EXPECT_THAT(Validate(*split, {.communication = Communication::kImplied}),
                IsOk());
    EXPECT_THAT(MergeBackward(*split), IsOkAndHolds(schedule));
  }
}

TEST(SplitBackwardTest, PairsThatAreNoneAreRefused) {
  Schedule schedule = FromCsv("0F0,0B0\n");
  schedule.ranks[0][1].with_next = true;
  for (const auto& result :
       {SplitBackward(schedule), MergeBackward(schedule)}) {
    EXPECT_THAT(result,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("rank 0, action 1 (0B0) runs together")));
  }
}

}  // namespace
}  // namespace tessera::pipeline
