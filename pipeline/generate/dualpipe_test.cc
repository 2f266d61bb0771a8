#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generators.h"
#include "pipeline/generate/testing/every_shape.h"
#include "pipeline/generate/testing/schedule_checker.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

TEST(DualPipeTest, EntersAtBothEndsAndPairs) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateDualPipe({.ranks = 2, .chunks = 1, .microbatches = 4}));
  EXPECT_EQ(schedule.map, *StageMap::TwoWay(2));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,1F2,0F1,1B2,(1F3;0B0)OVERLAP_F_B,1B3,0I1,0W1\n"
            "0F2,1F0,0F3,1B0,(1F1;0B2)OVERLAP_F_B,1B1,0I3,0W3\n");
}

TEST(DualPipeTest, BubbleAndMemoryMatchPaper) {
  for (const PipelineShape& shape : EveryShape(1)) {
    const auto [p, v, m] = shape;
    if (p % 2 == 1) continue;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateDualPipe(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_LE(run.peak(), std::min(p + 1, m)) << shape;
    if (m < 2 * p) continue;
    EXPECT_GT(run.pairs, 0) << shape;
    // (p / 2 - 1) (F&B + B - 3 W).
    if (m % 2 == 0) {
      EXPECT_EQ(run.makespan, 3 * m + p - 2) << shape;
    } else {
      EXPECT_LE(run.makespan, 3 * (m + 1) + p - 2) << shape;
    }
  }
}

TEST(DualPipeVTest, BubbleAndMemoryMatchPaper) {
  for (const PipelineShape& shape : EveryShape(2)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateDualPipeV(shape));
    EXPECT_EQ(schedule.map, *StageMap::Zigzag(p, 2));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_LE(run.peak(), std::min(2 * p + 1, 2 * m)) << shape;
    if (m < 2 * p) continue;
    // (p - 1) (F&B + B - 3 W).
    EXPECT_EQ(run.makespan, 6 * m + 2 * (p - 1)) << shape;
    // Rank 0 runs pairs except during warm-up and cool-down.
    EXPECT_GT(run.pairs, 0) << shape;
  }
}

}  // namespace

}  // namespace tessera::pipeline
