#include "pipeline/generate/looped_bfs.h"

#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/every_shape.h"
#include "pipeline/generate/schedule_checker.h"
#include "pipeline/schedule/csv.h"

namespace tessera::pipeline {
namespace {

TEST(LoopedBfsTest, AChunkIsDoneWithAllMicroBatchesBeforeTheNext) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateLoopedBfs({.ranks = 2, .chunks = 2, .microbatches = 2}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
}

TEST(LoopedBfsTest, BubbleIsThatOfOneChunk) {
  for (const PipelineShape& shape : EveryShape(0)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateLoopedBfs(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    // A micro-batch cannot enter a rank's next chunk before it went round.
    EXPECT_EQ(run.makespan, 3 * ((v - 1) * std::max(m, p) + m + p - 1))
        << shape;
    for (const int64_t peak : run.peaks) EXPECT_EQ(peak, v * m) << shape;
  }
}

}  // namespace
}  // namespace tessera::pipeline
