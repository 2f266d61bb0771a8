#include "tools/train/settings/batch_schedule.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Sizes(const BatchSchedule& batches, int64_t steps) {
  std::vector<int64_t> sizes;
  for (int64_t step = 0; step < steps; ++step) {
    sizes.push_back(batches.At(step));
  }
  return sizes;
}

TEST(BatchScheduleTest, GrowsEvenlyToTheWholeBatch) {
  EXPECT_THAT(Sizes({.batch = 16, .first = 4, .warmup_steps = 6}, 8),
              ElementsAre(4, 4, 8, 8, 12, 12, 16, 16));
  EXPECT_THAT(Sizes({.batch = 6, .first = 2, .warmup_steps = 3}, 5),
              ElementsAre(2, 2, 4, 6, 6));
  // More sizes than steps.
  EXPECT_THAT(Sizes({.batch = 8, .first = 1, .warmup_steps = 2}, 4),
              ElementsAre(1, 4, 8, 8));
  EXPECT_THAT(Sizes({.batch = 8}, 2), ElementsAre(8, 8));
}

TEST(BatchScheduleTest, SumsAndTheirInversesAreExact) {
  for (int64_t first = 1; first <= 4; ++first) {
    for (int64_t sizes = 1; sizes <= 9; ++sizes) {
      for (int64_t warmup = 0; warmup <= 20; ++warmup) {
        const BatchSchedule batches = {
            .batch = first * sizes, .first = first, .warmup_steps = warmup};
        int64_t sum = 0, samples = 0;
        for (int64_t step = 0; step < 30; ++step) {
          EXPECT_EQ(batches.SamplesBefore(step), sum);
          // The minimum number of steps with these samples.
          for (; samples <= sum; ++samples) {
            EXPECT_EQ(batches.StepsOf(samples), step);
          }
          EXPECT_GE(batches.At(step),
                    batches.At(std::max<int64_t>(step, 1) - 1));
          EXPECT_EQ(batches.At(step) % first, 0);
          sum += batches.At(step);
        }
        EXPECT_EQ(batches.At(warmup), batches.batch);
      }
    }
  }
}

TEST(BatchScheduleTest, LargeNumbersDoNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMany = int64_t{1} << 40;
  const BatchSchedule batches = {
      .batch = kMany, .first = kMany / 4, .warmup_steps = kMany};
  EXPECT_EQ(batches.At(kMany - 1), kMany / 4 * 3);
  EXPECT_EQ(batches.SamplesBefore(kMany), kMost);
  EXPECT_EQ(batches.StepsOf(kMany), 4);
  EXPECT_EQ(BatchSchedule{.batch = 1}.StepsOf(kMost), kMost);
}

TEST(ParseBatchWarmupTest, HasTwoPositiveNumbers) {
  const std::optional<BatchWarmup> warmup = ParseBatchWarmup("4:100");
  ASSERT_TRUE(warmup);
  EXPECT_EQ(warmup->first, 4);
  EXPECT_EQ(warmup->steps, 100);
  for (const char* text : {"", "4", "4:", ":4", "0:4", "4:0", "-4:4", "4:4:4",
                           "4,4", "a:b", "99999999999999999999:1"}) {
    EXPECT_FALSE(ParseBatchWarmup(text)) << text;
  }
}

}  // namespace
}  // namespace tessera::train
