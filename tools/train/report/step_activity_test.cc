#include "tools/train/report/step_activity.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using pipeline::ActionKind;
using ::testing::ElementsAre;

StepActivity Of100() {
  StepActivity activity;
  activity.whole = {1000, 1100};
  return activity;
}

MessageWait Receive(Span span, int64_t computed_ns) {
  return {{ActionKind::kReceiveForward, 1, 0}, span, computed_ns};
}

TEST(StepActivityTest, WithoutAnythingElseARankComputes) {
  const StepAccount account = AccountOf(Of100());
  EXPECT_THAT(account.of(Doing::kCompute), ElementsAre(Span{1000, 1100}));
  EXPECT_EQ(account.shares().compute, 1);
  EXPECT_EQ(account.shares().Sum(), 1);
}

TEST(StepActivityTest, AStepWithoutLengthCountsAsComputing) {
  const StepAccount account = AccountOf({});
  EXPECT_EQ(account.shares().compute, 1);
  EXPECT_EQ(account.shares().Sum(), 1);
}

TEST(StepActivityTest, AReceiveIsBubbleUntilThePeerHasComputed) {
  StepActivity activity = Of100();
  activity.messages = {Receive({1010, 1050}, 1040), Receive({1060, 1070}, 1020),
                       Receive({1080, 1090}, 2000)};
  const StepAccount account = AccountOf(activity);
  EXPECT_THAT(account.of(Doing::kBubble),
              ElementsAre(Span{1010, 1040}, Span{1080, 1090}));
  EXPECT_THAT(account.of(Doing::kCommunication),
              ElementsAre(Span{1040, 1050}, Span{1060, 1070}));
  EXPECT_NEAR(account.shares().bubble, 0.4, 1e-12);
  EXPECT_NEAR(account.shares().communication, 0.2, 1e-12);
  EXPECT_NEAR(account.shares().compute, 0.4, 1e-12);
}

TEST(StepActivityTest, BehindTheLastPassARankWaitsForTheOthers) {
  StepActivity activity = Of100();
  activity.tail = {1050, 1080};
  activity.collectives = {{.ranks = 2, .begin_ns = 1050, .end_ns = 1090}};
  const StepAccount account = AccountOf(activity);
  EXPECT_THAT(account.of(Doing::kBubble), ElementsAre(Span{1050, 1080}));
  EXPECT_THAT(account.of(Doing::kCommunication), ElementsAre(Span{1080, 1090}));
}

TEST(StepActivityTest, CollectivesBehindComputationsAreHidden) {
  StepActivity activity = Of100();
  activity.ops = {.spans = {{1000, 1050}}, .products_ns = 30};
  activity.collectives = {{.ranks = 4, .begin_ns = 1020, .end_ns = 1060},
                          {.ranks = 1, .begin_ns = 1070, .end_ns = 1080}};
  const StepAccount account = AccountOf(activity);
  EXPECT_THAT(account.of(Doing::kCommunication), ElementsAre(Span{1050, 1060}));
  EXPECT_THAT(account.of(Doing::kCompute),
              ElementsAre(Span{1000, 1050}, Span{1060, 1100}));
  EXPECT_NEAR(account.shares().products, 0.3, 1e-12);
}

TEST(StepActivityTest, ATierIsWaitedForWhileTheThreadSleeps) {
  StepActivity activity = Of100();
  activity.update = {1040, 1100};
  activity.tiers = {.calls = {{1048, 1050}},
                    .in_flight = {{1045, 1080}},
                    .segments = {{{1000, 1050}, 40}, {{1050, 1100}, 10}}};
  const StepAccount account = AccountOf(activity);
  // 40 ns of sleep before the call; an operation was running for 3 ns of them.
  EXPECT_THAT(account.of(Doing::kOffload), ElementsAre(Span{1045, 1060}));
  EXPECT_THAT(account.of(Doing::kOptimizer),
              ElementsAre(Span{1040, 1045}, Span{1060, 1100}));
  EXPECT_NEAR(account.shares().offload, 0.15, 1e-12);
  EXPECT_NEAR(account.shares().optimizer, 0.45, 1e-12);
  EXPECT_NEAR(account.shares().compute, 0.85, 1e-12);
}

TEST(StepActivityTest, EveryMomentIsCountedOnce) {
  std::mt19937_64 random(7);
  const auto spans = [&](size_t most) {
    std::vector<Span> raw;
    for (uint64_t i = random() % most; i > 0; --i) {
      const auto begin = static_cast<int64_t>(950 + random() % 180);
      raw.push_back({begin, begin + static_cast<int64_t>(random() % 30)});
    }
    return raw;
  };
  for (int i = 0; i < 5'000; ++i) {
    StepActivity activity = Of100();
    activity.ops.spans = Merged(spans(6));
    activity.update = {1060, 1090};
    activity.tail = {1040, 1060};
    for (const Span& span : spans(5)) {
      activity.messages.push_back(
          Receive(span, static_cast<int64_t>(950 + random() % 180)));
    }
    for (const Span& span : spans(5)) {
      activity.collectives.push_back(
          {.ranks = 2, .begin_ns = span.begin, .end_ns = span.end});
    }
    activity.tiers = {.calls = spans(4),
                      .in_flight = spans(4),
                      .segments = {{{950, 1050}, 20}, {{1050, 1130}, 50}}};
    const StepAccount account = AccountOf(activity);
    std::vector<Span> all;
    int64_t length = 0;
    for (const Doing doing : kAllDoings) {
      length += Length(account.of(doing));
      for (const Span& span : account.of(doing)) all.push_back(span);
    }
    ASSERT_EQ(length, 100);
    ASSERT_THAT(Merged(all), ElementsAre(Span{1000, 1100}));
    ASSERT_NEAR(account.shares().Sum(), 1, 1e-12);
  }
}

}  // namespace
}  // namespace tessera::train
