#include "tools/train/loop/snapshot_pace.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {
namespace {

// The expected share of the time that copies and repeated steps cost, with
// copies every `every` steps: half of the steps between copies are repeated.
double CostOf(int64_t every, double step, double copy, double failure) {
  const double between = static_cast<double>(every) * step;
  return copy / between + between / 2 / failure;
}

TEST(SnapshotIntervalTest, MinimizesCost) {
  for (const double step : {0.01, 0.3, 7.0}) {
    for (const double copy : {0.0, 1e-4, 0.02, 0.5}) {
      for (const double failure : {20.0, 3600.0, 1e6}) {
        const int64_t every = SnapshotInterval(step, copy, failure);
        int64_t best = 0;
        for (int64_t k = 1; k < 300'000; ++k) {
          const double share = copy / (static_cast<double>(k) * step);
          if (share > kSnapshotBudget * (1 + 1e-12)) continue;
          if (best == 0 || CostOf(k, step, copy, failure) <
                               CostOf(best, step, copy, failure)) {
            best = k;
          }
        }
        EXPECT_NEAR(static_cast<double>(every), static_cast<double>(best), 1)
            << step << " " << copy << " " << failure;
        EXPECT_LE(copy / (static_cast<double>(every) * step),
                  kSnapshotBudget * (1 + 1e-12));
      }
    }
  }
}

TEST(SnapshotIntervalTest, MatchesKnownValues) {
  EXPECT_EQ(SnapshotInterval(/*step=*/1, /*copy=*/0, /*failure=*/1e9), 1);
  EXPECT_EQ(SnapshotInterval(1, 0.02, 100), 2);        // sqrt(2 * 0.02 * 100)
  EXPECT_EQ(SnapshotInterval(0.5, 0.02, 10'000), 40);  // 20 s
  EXPECT_EQ(SnapshotInterval(1, 0.6, 1), 20);          // 3 %, not sqrt(1.2)
  EXPECT_EQ(SnapshotInterval(1e-9, 1, 1e12), 1'000'000'000);
}

// Times of steps that take 2 s, or 2.5 s after a copy, but for a slow start and
// two outliers.
double SecondsOf(int64_t step, bool follows_copy) {
  if (step < 4) return 9;
  if (step == 7 || step == 8) return 60;
  return follows_copy ? 2.5 : 2;
}

TEST(SnapshotPaceTest, MeasuresStepsWithAndWithoutCopies) {
  SnapshotPace pace(kAutomatic, /*failure=*/400);
  pace.AddCopy();
  bool follows_copy = true;
  int64_t copies = 0;
  std::optional<SnapshotChoice> choice;
  int64_t steps = 0;
  while (!choice.has_value()) {
    ASSERT_LT(steps, 20);
    choice = pace.AddStep(SecondsOf(steps, follows_copy));
    ++steps;
    follows_copy = pace.IsDue(steps);
    if (!follows_copy) continue;
    ++copies;
    pace.AddCopy();
  }
  EXPECT_EQ(steps, 16);
  EXPECT_EQ(copies, 8);
  EXPECT_EQ(choice->step_seconds, 2);
  EXPECT_EQ(choice->copy_seconds, 0.5);
  EXPECT_EQ(choice->failure_seconds, 400);
  EXPECT_EQ(choice->every, 10);  // sqrt(2 * 0.5 * 400) / 2
  EXPECT_FALSE(pace.AddStep(100).has_value());
  EXPECT_TRUE(pace.IsDue(30));
  EXPECT_FALSE(pace.IsDue(31));
  EXPECT_EQ(
      DescribeChoice(*choice),
      "after every 10 steps: a copy takes 500.0 ms, a step 2000.0 ms, and a "
      "failure is expected every 6m40s; 2.50 % of the time");
}

TEST(SnapshotPaceTest, CopiesEveryStepIfFree) {
  SnapshotPace pace(kAutomatic, 1e6);
  std::optional<SnapshotChoice> choice;
  for (int64_t step = 0; !choice.has_value(); ++step) {
    ASSERT_LT(step, 20);
    pace.AddCopy();
    if (step % 2 == 1) pace.AddStep(0.9);
    choice = pace.AddStep(1);
  }
  EXPECT_EQ(choice->copy_seconds, 0);
  EXPECT_EQ(choice->every, 1);
}

TEST(SnapshotPaceTest, FixedIntervalIsNotMeasured) {
  SnapshotPace pace(3, 1e6);
  for (int64_t step = 1; step < 60; ++step) {
    EXPECT_FALSE(pace.AddStep(1).has_value());
    EXPECT_EQ(pace.IsDue(step), step % 3 == 0);
  }
  EXPECT_FALSE(pace.choice().has_value());
}

TEST(SnapshotPaceTest, AdoptsChoiceOfOtherRanks) {
  const SnapshotChoice choice = {12, 0.1, 1.0 / 3, 1.5e7};
  const auto parsed = ParseChoice(FormatChoice(choice));
  TESSERA_ASSERT_OK(parsed);
  EXPECT_EQ(parsed->every, choice.every);
  EXPECT_EQ(parsed->step_seconds, choice.step_seconds);
  EXPECT_EQ(parsed->copy_seconds, choice.copy_seconds);
  EXPECT_EQ(parsed->failure_seconds, choice.failure_seconds);
  SnapshotPace pace(kAutomatic, 1e6);
  pace.Continue(*parsed);
  EXPECT_TRUE(pace.IsDue(24));
  EXPECT_FALSE(pace.IsDue(25));
  for (const std::string text : {"", "12 0.1 1", "0 1 1 1", "a 1 1 1"}) {
    EXPECT_THAT(ParseChoice(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("not a choice")));
  }
}

}  // namespace
}  // namespace tessera::train
