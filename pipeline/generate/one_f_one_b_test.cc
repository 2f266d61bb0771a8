#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generators.h"
#include "pipeline/generate/testing/every_shape.h"
#include "pipeline/generate/testing/schedule_checker.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

TEST(OneFOneBTest, WarmsUpAlternatesAndCoolsDown) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateOneFOneB({.ranks = 2, .chunks = 1, .microbatches = 3}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
}

TEST(OneFOneBTest, BubbleAndMemoryMatchPaper) {
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

TEST(InterleavedOneFOneBTest, ChunksTakeTurns) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      GenerateInterleavedOneFOneB(
          {.ranks = 2, .chunks = 2, .microbatches = 4}));
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3"
            "\n");
}

TEST(InterleavedOneFOneBTest, BubbleIsDividedByTheChunks) {
  for (const PipelineShape& shape : EveryShape(0)) {
    const auto [p, v, m] = shape;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateInterleavedOneFOneB(shape));
    const Execution run = Execute(schedule);
    ASSERT_EQ(run.error, "") << shape;
    if (m % p == 0) {
      EXPECT_EQ(run.makespan, 3 * (v * m + p - 1)) << shape;
      EXPECT_EQ(Execute(schedule, {.forward = 5, .backward = 7}).makespan,
                12 * (v * m + p - 1))
          << shape;
    } else {
      // No later than with the missing micro-batches added.
      const int64_t next = (m + p - 1) / p * p;
      EXPECT_LE(run.makespan, 3 * (v * next + p - 1)) << shape;
    }
  }
}

TEST(InterleavedOneFOneBTest, MemoryMatchesWarmUp) {
  for (const PipelineShape& shape : EveryShape(0)) {
    const auto [p, v, m] = shape;
    if (v == 1) continue;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateInterleavedOneFOneB(shape));
    const Execution run = Execute(schedule);
    for (int64_t rank = 0; rank < p; ++rank) {
      const int64_t peak = run.peaks[static_cast<size_t>(rank)];
      const int64_t most =
          std::min(2 * (p - 1 - rank) + (v - 1) * p + 1, v * m);
      EXPECT_LE(peak, most) << shape << ", rank " << rank;
      if (m % p == 0) {
        EXPECT_EQ(peak, most) << shape << ", rank " << rank;
      }
    }
  }
}

TEST(InterleavedOneFOneBTest, IsOneFOneBWithOneChunk) {
  for (const PipelineShape& shape : EveryShape(1)) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 GenerateInterleavedOneFOneB(shape));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule plain, GenerateOneFOneB(shape));
    if (shape.microbatches % shape.ranks == 0) {
      EXPECT_EQ(schedule.ranks, plain.ranks) << shape;
    }
    EXPECT_EQ(Execute(schedule).makespan, Execute(plain).makespan) << shape;
  }
}

}  // namespace

}  // namespace tessera::pipeline
