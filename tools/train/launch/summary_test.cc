#include "tools/train/launch/summary.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunResult Example() {
  RunResult result;
  result.steps.resize(2);
  result.steps[0].record.loss = 5.5;
  result.steps[1].record = {.step = 1, .loss = 2.25};
  result.ranks.resize(2);
  result.ranks[0].shares = {0.5, 0.3, 0.1, 0.1, 0, 0};
  result.ranks[1].shares = {0.3, 0.3, 0.3, 0.1, 0, 0};
  result.ranks[1].memory.peak_resident = 3 << 19;
  result.checkpoint = "/run/checkpoints/step-00000002";
  result.seconds = 4;
  result.tokens_per_second = 1024;
  return result;
}

TEST(SummaryTextTest, SaysWhatARunCameTo) {
  EXPECT_EQ(SummaryText({}, Example()),
            "\n2 steps of 2048 tokens in 4.0 s, 1024 tokens/s\n"
            "loss       5.5000 at step 0, 2.2500 at step 1\n"
            "time       compute 40 %, communication 30 %, bubble 20 %, offload "
            "10 %; rank 1 computes least, 30 %\n"
            "memory     1.5 MiB resident at most, of rank 1\n"
            "checkpoint /run/checkpoints/step-00000002\n");
}

TEST(SummaryTextTest, SaysWhatWasGivenUpForMemory) {
  RunResult result = Example();
  result.strategy_changes = {{3, 1 << 20, "standard", "--recompute=full"},
                             {5, 1 << 20, "aggressive", "--zero=3"}};
  EXPECT_THAT(SummaryText({}, result),
              HasSubstr("strategy   standard after 3 steps: --recompute=full\n"
                        "strategy   aggressive after 5 steps: --zero=3\n"));
}

TEST(SummaryTextTest, LeavesOutWhatThereIsNot) {
  RunResult result;
  result.first_step = 60;
  EXPECT_EQ(SummaryText({}, result),
            "\n0 steps of 2048 tokens in 0.0 s, 0 tokens/s, behind step 60\n");
}

TEST(SummaryTextTest, ThreadsShareTheirMemory) {
  RunResult result = Example();
  result.memory_is_shared = true;
  EXPECT_THAT(SummaryText({}, result), HasSubstr("1.5 MiB resident for all"));
  EXPECT_THAT(SummaryText({}, result), Not(HasSubstr("of rank")));
}

}  // namespace
}  // namespace tessera::train
