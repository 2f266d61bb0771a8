#include "pipeline/generate/one_f_one_b.h"

#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/every_shape.h"
#include "pipeline/generate/schedule_checker.h"
#include "pipeline/schedule/csv.h"

namespace tessera::pipeline {
namespace {

TEST(OneFOneBTest, WarmsUpAlternatesAndCoolsDown) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateOneFOneB({.ranks = 2, .chunks = 1, .microbatches = 3}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
}

TEST(OneFOneBTest, BubbleAndMemoryAreThoseOfThePaper) {
  for (const PipelineShape& shape : EveryShape(1)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateOneFOneB(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_EQ(run.makespan, 3 * (m + p - 1)) << shape;
    EXPECT_EQ(Execute(schedule, {.forward = 5, .backward = 7}).makespan,
              12 * (m + p - 1))
        << shape;
    for (int64_t rank = 0; rank < p; ++rank) {
      EXPECT_EQ(run.peaks[static_cast<size_t>(rank)], std::min(p - rank, m))
          << shape;
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline
