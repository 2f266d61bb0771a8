#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generators.h"
#include "pipeline/generate/testing/every_shape.h"
#include "pipeline/generate/testing/schedule_checker.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

using ::testing::HasSubstr;

TEST(BuildingBlockTest, WeightPassesFillFreeSteps) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      RepeatBlock("block", BuildingBlock{},
                  {.ranks = 1, .chunks = 2, .microbatches = 2}));
  EXPECT_EQ(schedule.name, "block");
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,1F0,1I0,0I0,1W0,0W0,"
            "0F1,1F1,1I1,0I1,1W1,0W1\n");
}

// The sum of an activation's lifetimes, divided by the period, in both chunks.
TEST(BuildingBlockTest, MemoryFollowsFromTheSteps) {
  for (int64_t down = 1; down <= 2; ++down) {
    const BuildingBlock block = {.forward_down = down,
                                 .forward_up = 3 - down,
                                 .backward_down = down,
                                 .backward_up = 3 - down};
    for (int64_t p = 1; p <= 24; ++p) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                   RepeatBlock("block", block, {p, 2, 3 * p}));
      const Execution run = Execute(schedule);
      ASSERT_EQ(run.error, "") << p;
      EXPECT_LE(run.peak(), p + 2) << p;
    }
  }
}

TEST(BuildingBlockTest, RejectsPassesThatAlwaysCollide) {
  // Forward and backward-input on the way down move one step closer per rank.
  const BuildingBlock block = {
      .forward_down = 1, .forward_up = 1, .backward_down = 2, .backward_up = 2};
  EXPECT_THAT(
      RepeatBlock("block", block, {.ranks = 8, .chunks = 2, .microbatches = 4}),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("block for 8 ranks: the passes")));
}

TEST(VHalfTest, HoldsHalfOf1F1BsActivations) {
  for (const PipelineShape& shape : EveryShape(2)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, GenerateVHalf(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_LE(run.peak(), std::min(p / 2 * 2 + 2, 2 * m)) << shape;
    if (m < p) continue;
    EXPECT_LE(run.makespan, 6 * m + (7 * (p - 1) + 3) / 2) << shape;
  }
}

TEST(VHalfTest, AlsoOnManyRanks) {
  for (int64_t p = 13; p <= 70; ++p) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateVHalf({p, 2, 2 * p}));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << p;
    EXPECT_LE(run.peak(), p / 2 * 2 + 2) << p;
    EXPECT_LE(run.makespan, 12 * p + (7 * (p - 1) + 3) / 2) << p;
  }
}

TEST(VMinTest, HoldsAThirdOf1F1BsActivations) {
  for (const PipelineShape& shape : EveryShape(2)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, GenerateVMin(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_LE(run.peak(), std::min((2 * p + 8) / 3, 2 * m)) << shape;
    EXPECT_LE(run.makespan, 6 * m + 4 * (p - 1) + 1) << shape;
  }
}

TEST(VMinTest, AlsoOnManyRanks) {
  for (int64_t p = 13; p <= 70; ++p) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateVMin({p, 2, 2 * p}));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << p;
    EXPECT_LE(run.peak(), (2 * p + 8) / 3) << p;
    EXPECT_LE(run.makespan, 12 * p + 4 * (p - 1) + 1) << p;
  }
}

}  // namespace

}  // namespace tessera::pipeline
