#include "pipeline/generate/gpipe.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/every_shape.h"
#include "pipeline/generate/schedule_checker.h"
#include "pipeline/schedule/csv.h"

namespace tessera::pipeline {
namespace {

TEST(GpipeTest, AllGoForwardThenBackFromTheLast) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateGpipe({.ranks = 2, .chunks = 1, .microbatches = 3}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n");
}

TEST(GpipeTest, BubbleAndMemoryAreThoseOfThePaper) {
  for (const PipelineShape& shape : EveryShape(1)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule, GenerateGpipe(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_EQ(run.makespan, 3 * (m + p - 1)) << shape;
    EXPECT_EQ(Execute(schedule, {.forward = 5, .backward = 7}).makespan,
              12 * (m + p - 1))
        << shape;
    for (const int64_t peak : run.peaks) EXPECT_EQ(peak, m) << shape;
  }
}

}  // namespace
}  // namespace tessera::pipeline
