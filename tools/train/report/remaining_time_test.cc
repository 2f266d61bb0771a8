#include "tools/train/report/remaining_time.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::train {
namespace {

class RemainingTimeTest : public ::testing::Test {
 protected:
  // A step and, if `validation` is not 0, its validation.
  void Add(RemainingTime& remaining, int64_t step, double seconds,
           double validation = 0) {
    now_ += absl::Seconds(seconds + validation);
    StepMetrics metrics = {.record = {.step = step}, .seconds = seconds};
    if (validation > 0) metrics.record.eval_loss = 1;
    remaining.Add(metrics);
  }

  RemainingTime Of(int64_t steps, bool validates = false) {
    return RemainingTime(steps, validates, [this] { return now_; });
  }

  absl::Time now_ = absl::UnixEpoch();
};

double Seconds(const RemainingTime& remaining) {
  return absl::ToDoubleSeconds(remaining.Estimate()->time);
}

TEST_F(RemainingTimeTest, IsTheMedianOfRecentStepsForEachStepLeft) {
  RemainingTime remaining = Of(200);
  EXPECT_EQ(remaining.Estimate(), std::nullopt);
  std::mt19937 random(1);
  std::vector<double> all;
  for (int64_t step = 0; step < 200; ++step) {
    const double seconds = 0.001 * static_cast<double>(1 + random() % 1000);
    all.push_back(seconds);
    Add(remaining, step, seconds);
    // By definition: all but the first if there are others, the last 25.
    std::vector<double> recent(all.begin() + (step > 0 ? 1 : 0), all.end());
    if (recent.size() > 25) recent.erase(recent.begin(), recent.end() - 25);
    std::sort(recent.begin(), recent.end());
    const size_t n = recent.size();
    const double median = (recent[(n - 1) / 2] + recent[n / 2]) / 2;
    EXPECT_NEAR(Seconds(remaining), median * static_cast<double>(199 - step),
                1e-6);
    EXPECT_FALSE(remaining.Estimate()->without_validation);
  }
  EXPECT_EQ(remaining.Estimate()->time, absl::ZeroDuration());
}

TEST_F(RemainingTimeTest, AResumedRunHasOnlyTheStepsThatAreLeft) {
  RemainingTime remaining = Of(100);
  Add(remaining, 89, 2);
  EXPECT_NEAR(Seconds(remaining), 20, 1e-9);
}

TEST_F(RemainingTimeTest, APauseChangesNothing) {
  RemainingTime remaining = Of(1000);
  for (int64_t step = 0; step < 30; ++step) {
    Add(remaining, step, step == 20 ? 500 : 1);
  }
  EXPECT_NEAR(Seconds(remaining), 970, 1e-9);
}

TEST_F(RemainingTimeTest, SaysThatValidationIsMissingUntilItIsMeasured) {
  RemainingTime remaining = Of(101, /*validates=*/true);
  for (int64_t step = 0; step < 10; ++step) {
    Add(remaining, step, 1);
    EXPECT_TRUE(remaining.Estimate()->without_validation);
    EXPECT_NEAR(Seconds(remaining), static_cast<double>(100 - step), 1e-9);
  }
  // A validation of 5 seconds in 10 steps after the first one.
  Add(remaining, 10, 1, 5);
  EXPECT_FALSE(remaining.Estimate()->without_validation);
  EXPECT_NEAR(Seconds(remaining), 90 * 1.5, 1e-9);
  // Every tenth step: the estimate stays right.
  for (int64_t step = 11; step < 51; ++step) {
    Add(remaining, step, 1, step % 10 == 0 ? 5 : 0);
  }
  EXPECT_NEAR(Seconds(remaining), 50 * 1.5, 1e-9);
}

TEST_F(RemainingTimeTest, NothingIsMissingAtTheEnd) {
  RemainingTime remaining = Of(1, /*validates=*/true);
  Add(remaining, 0, 1);
  EXPECT_EQ(remaining.Estimate(), RemainingEstimate());
  // A clock that runs backwards takes nothing off.
  RemainingTime other = Of(10, /*validates=*/true);
  Add(other, 0, 1);
  now_ -= absl::Hours(1);
  Add(other, 1, 1, 1);
  EXPECT_NEAR(Seconds(other), 8, 1e-9);
}

TEST(RemainingTextTest, HasTwoUnits) {
  const auto text = [](double seconds, bool without = false) {
    return RemainingText(RemainingEstimate{absl::Seconds(seconds), without});
  };
  EXPECT_EQ(RemainingText(std::nullopt), "-");
  EXPECT_EQ(text(0), "0s");
  EXPECT_EQ(text(0.4), "0s");
  EXPECT_EQ(text(59.4), "59s");
  EXPECT_EQ(text(59.6), "1m00s");
  EXPECT_EQ(text(725), "12m05s");
  EXPECT_EQ(text(3599.9), "1h00m");
  EXPECT_EQ(text(3 * 3600 + 7 * 60 + 59), "3h07m");
  EXPECT_EQ(text(86400 * 2 + 3600 * 4), "2d04h");
  EXPECT_EQ(text(86400 * 400), "400d00h");
  EXPECT_EQ(text(61, true), "1m01s+");
}

}  // namespace
}  // namespace tessera::train
