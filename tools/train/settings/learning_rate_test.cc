#include "tools/train/settings/learning_rate.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

constexpr RateSchedule kAll[] = {RateSchedule::kCosine, RateSchedule::kLinear,
                                 RateSchedule::kWsd, RateSchedule::kConstant};

LearningRate Rate(RateSchedule schedule, int64_t warmup, int64_t total,
                  int64_t decay = 0) {
  return {.schedule = schedule,
          .peak = 0.8,
          .least = 0.2,
          .warmup_steps = warmup,
          .decay_steps = decay,
          .total_steps = total};
}

TEST(LearningRateTest, FollowsTheClosedForms) {
  const LearningRate cosine = Rate(RateSchedule::kCosine, 10, 110);
  const LearningRate linear = Rate(RateSchedule::kLinear, 10, 110);
  const LearningRate wsd = Rate(RateSchedule::kWsd, 10, 110, 25);
  const LearningRate constant = Rate(RateSchedule::kConstant, 10, 110);
  for (int64_t step = 10; step < 110; ++step) {
    const double done = static_cast<double>(step - 10) / 100;
    EXPECT_NEAR(cosine.At(step), 0.5 + 0.3 * std::cos(std::numbers::pi * done),
                1e-12);
    EXPECT_NEAR(linear.At(step), 0.8 - 0.6 * done, 1e-12);
    EXPECT_EQ(constant.At(step), 0.8);
    const double decayed =
        step <= 85 ? 0 : std::sqrt(static_cast<double>(step - 85) / 25);
    EXPECT_NEAR(wsd.At(step), 0.8 - 0.6 * decayed, 1e-12);
  }
  // Three quarters of the way a cosine has turned by 135 degrees.
  EXPECT_NEAR(cosine.At(85), 0.5 - 0.3 * std::numbers::sqrt2 / 2, 1e-12);
  EXPECT_NEAR(wsd.At(85 + 16), 0.8 - 0.6 * 4 / 5, 1e-12);
}

TEST(LearningRateTest, WarmsUpOnALine) {
  for (const RateSchedule schedule : kAll) {
    const LearningRate rate = Rate(schedule, 4, 100, 10);
    EXPECT_DOUBLE_EQ(rate.At(0), 0.2);
    EXPECT_DOUBLE_EQ(rate.At(1), 0.4);
    EXPECT_DOUBLE_EQ(rate.At(3), 0.8);
    EXPECT_DOUBLE_EQ(rate.At(4), 0.8);
    EXPECT_DOUBLE_EQ(Rate(schedule, 0, 100, 10).At(0), 0.8);
    EXPECT_DOUBLE_EQ(Rate(schedule, 1, 100, 10).At(0), 0.8);
  }
}

TEST(LearningRateTest, WarmUpMayExceedRun) {
  for (const RateSchedule schedule : kAll) {
    for (const int64_t total : {5, 3}) {
      const LearningRate rate = Rate(schedule, 5, total, 2);
      for (int64_t step = 0; step < 5; ++step) {
        EXPECT_DOUBLE_EQ(rate.At(step), 0.16 * static_cast<double>(step + 1));
      }
      EXPECT_DOUBLE_EQ(rate.At(5), 0.8);
    }
  }
}

TEST(LearningRateTest, EndsAtTheLeastRateAndStaysThere) {
  for (const RateSchedule schedule : kAll) {
    const double end = schedule == RateSchedule::kConstant ? 0.8 : 0.2;
    const LearningRate rate = Rate(schedule, 3, 40, 10);
    for (const int64_t step : {40, 41, 1000}) {
      EXPECT_DOUBLE_EQ(rate.At(step), end);
    }
    EXPECT_GT(rate.At(39), end - 1e-9);
  }
}

TEST(LearningRateTest, NeverRisesAfterWarmUpAndStaysInRange) {
  for (const RateSchedule schedule : kAll) {
    for (const int64_t warmup : {0, 1, 7, 50}) {
      for (const int64_t total : {1, 2, 13, 50}) {
        for (const int64_t decay : {0, 1, 5, 50, 80}) {
          const LearningRate rate = Rate(schedule, warmup, total, decay);
          for (int64_t step = warmup; step < total + 3; ++step) {
            const double at = rate.At(step);
            EXPECT_GE(at, 0.2 - 1e-12);
            EXPECT_LE(at, 0.8 + 1e-12);
            EXPECT_LE(rate.At(step + 1), at);
          }
        }
      }
    }
  }
}

// With as many steps of decay as remain it begins right after the warm-up.
TEST(LearningRateTest, DecayIsCutByTheWarmUp) {
  for (const int64_t decay : {90, 100, 1000}) {
    const LearningRate rate = Rate(RateSchedule::kWsd, 10, 100, decay);
    EXPECT_DOUBLE_EQ(rate.At(10), 0.8);
    EXPECT_NEAR(rate.At(10 + 40), 0.8 - 0.6 * std::sqrt(40.0 / 90), 1e-12);
  }
  const LearningRate none = Rate(RateSchedule::kWsd, 10, 100, 0);
  EXPECT_DOUBLE_EQ(none.At(99), 0.8);
}

TEST(LearningRateTest, StableStepsDoNotDependOnTheLengthOfTheRun) {
  const LearningRate first = Rate(RateSchedule::kWsd, 10, 100, 20);
  const LearningRate longer = Rate(RateSchedule::kWsd, 10, 1000, 20);
  for (int64_t step = 0; step <= 80; ++step) {
    EXPECT_EQ(first.At(step), longer.At(step));
  }
  EXPECT_LT(first.At(81), longer.At(81));
}

TEST(LearningRateTest, SchedulesAreNamed) {
  EXPECT_THAT(ParseRateSchedule("cosine"), IsOkAndHolds(RateSchedule::kCosine));
  EXPECT_THAT(ParseRateSchedule("linear"), IsOkAndHolds(RateSchedule::kLinear));
  EXPECT_THAT(ParseRateSchedule("wsd"), IsOkAndHolds(RateSchedule::kWsd));
  EXPECT_THAT(ParseRateSchedule("constant"),
              IsOkAndHolds(RateSchedule::kConstant));
  EXPECT_THAT(ParseRateSchedule("step"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"step\"; there are cosine, linear")));
}

}  // namespace
}  // namespace tessera::train
