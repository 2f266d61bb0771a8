#include "pipeline/generate/dualpipev.h"

#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/every_shape.h"
#include "pipeline/generate/schedule_checker.h"

namespace tessera::pipeline {
namespace {

TEST(DualPipeVTest, BubbleAndMemoryAreThoseOfThePaper) {
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
    // Rank 0 pairs but what it warms up with and cools down with.
    EXPECT_GT(run.pairs, 0) << shape;
  }
}

}  // namespace
}  // namespace tessera::pipeline
