#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/schedule_checker.h"
#include "pipeline/generate/v_shaped.h"
#include "pipeline/schedule/csv.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

TEST(BuildingBlockTest, WeightsFillTheStepsThatAreFree) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      RepeatBlock("block", BuildingBlock{},
                  {.ranks = 1, .chunks = 2, .microbatches = 2}));
  EXPECT_EQ(schedule.name, "block");
  EXPECT_EQ(WriteCsv(schedule),
            "0F0,1F0,1I0,0I0,1W0,0W0,"
            "0F1,1F1,1I1,0I1,1W1,0W1\n");
}

// The sum of an activation's lives, divided by the period, in both chunks.
TEST(BuildingBlockTest, MemoryFollowsFromTheSteps) {
  for (int64_t down = 1; down <= 2; ++down) {
    const BuildingBlock block = {.forward_down = down,
                                 .forward_up = 3 - down,
                                 .backward_down = down,
                                 .backward_up = 3 - down};
    for (int64_t p = 1; p <= 24; ++p) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                   RepeatBlock("block", block, {p, 2, 3 * p}));
      const Execution run = Execute(schedule);
      ASSERT_EQ(run.error, "") << p;
      EXPECT_LE(run.peak(), p + 2) << p;
    }
  }
}

TEST(BuildingBlockTest, PassesThatAlwaysMeetAreRefused) {
  // Forward and backward-input down come closer by a step with every rank.
  const BuildingBlock block = {
      .forward_down = 1, .forward_up = 1, .backward_down = 2, .backward_up = 2};
  EXPECT_THAT(
      RepeatBlock("block", block, {.ranks = 8, .chunks = 2, .microbatches = 4}),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("block for 8 ranks: the passes")));
}

}  // namespace
}  // namespace tessera::pipeline
