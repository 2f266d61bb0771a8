#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/every_shape.h"
#include "pipeline/generate/schedule_checker.h"
#include "pipeline/generate/v_shaped.h"
#include "pipeline/schedule/csv.h"

namespace tessera::pipeline {
namespace {

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
