#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generators.h"
#include "pipeline/generate/testing/every_shape.h"
#include "pipeline/generate/testing/schedule_checker.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

TEST(SequentialTest, OneMicroBatchIsUnderWayAtATime) {
  for (const PipelineShape& shape : EveryShape(0)) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateSequential(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    EXPECT_EQ(run.makespan, 3 * shape.ranks * shape.chunks * shape.microbatches)
        << shape;
    for (const int64_t peak : run.peaks) EXPECT_EQ(peak, shape.chunks) << shape;
  }
}

TEST(GpipeTest, AllGoForwardThenBackFromTheLast) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateGpipe({.ranks = 2, .chunks = 1, .microbatches = 3}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n");
}

TEST(GpipeTest, BubbleAndMemoryMatchPaper) {
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

TEST(LoopedBfsTest, ChunkFinishesAllMicroBatchesBeforeNext) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateLoopedBfs({.ranks = 2, .chunks = 2, .microbatches = 2}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
}

TEST(LoopedBfsTest, BubbleMatchesOneChunk) {
  for (const PipelineShape& shape : EveryShape(0)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateLoopedBfs(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    // A micro-batch enters a rank's next chunk after a full round.
    EXPECT_EQ(run.makespan, 3 * ((v - 1) * std::max(m, p) + m + p - 1))
        << shape;
    for (const int64_t peak : run.peaks) EXPECT_EQ(peak, v * m) << shape;
  }
}

TEST(RoundRobinTest, MicroBatchGroupsCycleThroughChunks) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateRoundRobin({.ranks = 2, .chunks = 2, .microbatches = 3}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,2F0,2F1,0F2,2F2,2B2,0B2,2B1,2B0,0B1,0B0\n"
            "1F0,1F1,3F0,3F1,1F2,3F2,3B2,1B2,3B1,3B0,1B1,1B0\n");
}

TEST(RoundRobinTest, BubbleMatchesOneChunk) {
  for (const PipelineShape& shape : EveryShape(0)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateRoundRobin(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    // A smaller last group leaves gaps on its way round.
    const int64_t last = (m - 1) % p + 1;
    EXPECT_EQ(run.makespan, 3 * (v * m + p - 1 + (v - 1) * (p - last)))
        << shape;
    for (const int64_t peak : run.peaks) EXPECT_EQ(peak, v * m) << shape;
  }
}

TEST(RoundRobinTest, IsGpipeWithOneChunk) {
  for (const PipelineShape& shape : EveryShape(1)) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateRoundRobin(shape));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule gpipe, GenerateGpipe(shape));
    EXPECT_EQ(schedule.ranks, gpipe.ranks) << shape;
  }
}

}  // namespace

}  // namespace tessera::pipeline
