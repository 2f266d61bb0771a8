#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/every_shape.h"
#include "pipeline/generate/schedule_checker.h"
#include "pipeline/generate/v_shaped.h"

namespace tessera::pipeline {
namespace {

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

}  // namespace
}  // namespace tessera::pipeline
