#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generators.h"
#include "pipeline/generate/testing/every_shape.h"
#include "pipeline/generate/testing/schedule_checker.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

TEST(ZbHTest, WeightsLagBehind) {
  const PipelineShape shape = {.ranks = 2, .chunks = 1, .microbatches = 3};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule h1, GenerateZbH1(shape));
  EXPECT_EQ(WriteCsv(h1),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule h2, GenerateZbH2(shape));
  EXPECT_EQ(WriteCsv(h2),
            "0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2\n");
}

TEST(ZbHTest, H1HasAThirdOfTheBubbleInTheMemoryOf1F1B) {
  for (const PipelineShape& shape : EveryShape(1)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, GenerateZbH1(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    for (const int64_t peak : run.peaks) {
      EXPECT_EQ(peak, std::min(p, m)) << shape;
    }
    EXPECT_LE(run.makespan, 3 * (m + p - 1)) << shape;
    if (m < p) continue;
    // (p - 1) (F + I - W).
    EXPECT_EQ(run.makespan, 3 * m + p - 1) << shape;
    EXPECT_EQ(run.longest_span, 3 * m + p - 1) << shape;
    const UnitTimes times = {
        .forward = 5, .backward_input = 5, .backward_weight = 4};
    EXPECT_EQ(Execute(schedule, times).longest_span, 14 * m + 6 * (p - 1))
        << shape;
  }
}

TEST(ZbHTest, H2HasNoBubbleInTwiceTheMemory) {
  for (const PipelineShape& shape : EveryShape(1)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, GenerateZbH2(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    for (const int64_t peak : run.peaks) {
      EXPECT_EQ(peak, std::min(2 * p - 1, m)) << shape;
    }
    if (m < 2 * p - 1) continue;
    EXPECT_EQ(run.longest_span, 3 * m) << shape;
    EXPECT_EQ(run.makespan, 3 * m + p - 1) << shape;
  }
}

TEST(ZbVTest, AMicroBatchTurnsRoundOnTheLastRank) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateZbV({.ranks = 2, .chunks = 2, .microbatches = 1}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,3F0,3I0,3W0,0I0,0W0\n"
            "1F0,2F0,2I0,2W0,1I0,1W0\n");
}

TEST(ZbVTest, NoRankHasABubbleInTheMemoryOf1F1B) {
  for (const PipelineShape& shape : EveryShape(2)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, GenerateZbV(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_LE(run.peak(), std::min(2 * p, 2 * m)) << shape;
    if (m < 2 * p - 1) continue;
    for (const int64_t peak : run.peaks) EXPECT_EQ(peak, 2 * p) << shape;
    EXPECT_EQ(run.longest_span, 6 * m) << shape;
    EXPECT_EQ(run.makespan, 6 * m + p - 1) << shape;
  }
}

}  // namespace

}  // namespace tessera::pipeline
