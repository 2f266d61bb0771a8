#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/triad.h"
#include "tools/offload_bench/in_turns.h"
#include "tools/offload_bench/stopwatch.h"
#include "tools/offload_bench/weights.h"

namespace tessera::offload_bench {
namespace {

using ::testing::HasSubstr;

TEST(CompareTest, TakesMediansAndComparesTurnByTurn) {
  // Everything takes ten times as long from the third turn on.
  const Comparison c = Compare({4, 2, 40, 20, 40}, {1, 1, 10, 10, 20});
  EXPECT_EQ(c.turns, 5);
  EXPECT_DOUBLE_EQ(c.subject.seconds, 20);
  EXPECT_DOUBLE_EQ(c.limit.seconds, 10);
  EXPECT_DOUBLE_EQ(c.share, 0.5);  // Of 1/4, 1/2, 1/4, 1/2, 1/2.
  EXPECT_DOUBLE_EQ(c.subject.spread, (40.0 - 4) / 20);
}

TEST(CompareTest, OneTurnHasNoSpread) {
  const Comparison c = Compare({2}, {1});
  EXPECT_DOUBLE_EQ(c.share, 0.5);
  EXPECT_DOUBLE_EQ(c.subject.spread, 0);
}

TEST(CompareInTurnsTest, ChangesWhoGoesFirst) {
  std::string order;
  const auto pass = [&order](char name) -> Pass {
    return [&order, name]() -> absl::StatusOr<double> {
      order += name;
      return name == 's' ? 4.0 : 1.0;
    };
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(const Comparison c,
                               CompareInTurns(pass('s'), pass('l'), 0));
  EXPECT_EQ(order,
            "sl"
            "sl"
            "ls"
            "sl"
            "ls"
            "sl");
  EXPECT_EQ(c.turns, kLeastTurns);
  EXPECT_DOUBLE_EQ(c.share, 0.25);
}

TEST(CompareInTurnsTest, GoesOnForTheTimeThatIsGiven) {
  const Pass pass = Timed([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const Comparison c,
                               CompareInTurns(pass, pass, 0.1));
  EXPECT_GT(c.turns, kLeastTurns);
  EXPECT_GT(c.share, 0.2);
  EXPECT_LT(c.share, 5);
}

TEST(CompareInTurnsTest, EndsAtTheFirstFailureOfEither) {
  for (const bool of_limit : {false, true}) {
    int left = 3;
    const Pass good = [] { return 1.0; };
    const Pass bad = [&left]() -> absl::StatusOr<double> {
      if (left-- == 0) return absl::DataLossError("it broke");
      return 1.0;
    };
    EXPECT_THAT(
        of_limit ? CompareInTurns(good, bad, 1) : CompareInTurns(bad, good, 1),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it broke")));
    EXPECT_EQ(left, -1);
  }
}

TEST(TimedTest, RepeatsWhatIsShort) {
  int64_t calls = 0;
  const Pass pass = Timed([&calls] {
    ++calls;
    return absl::OkStatus();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const double first, pass());
  EXPECT_GT(calls, 10);
  EXPECT_LT(first, 1e-3);
  const int64_t repeats = calls;
  TESSERA_ASSERT_OK(pass().status());
  EXPECT_EQ(calls, 2 * repeats);
}

TEST(TimedTest, DoesNotRepeatWhatIsLong) {
  int64_t calls = 0;
  const Pass pass = Timed([&calls] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return absl::OkStatus();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const double seconds, pass());
  EXPECT_EQ(calls, 1);
  EXPECT_GE(seconds, 3e-3);
}

TEST(StopwatchTest, ProcessorTimeIsWithoutWaitingAndByThread) {
  const Stopwatch wall(TimeKind::kWall);
  const Stopwatch one(TimeKind::kProcessor);
  const Stopwatch four(TimeKind::kProcessor, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_GE(wall.Seconds(), 0.03);
  EXPECT_LT(one.Seconds(), 0.025);
  while (one.Seconds() < 0.02) {
  }
  EXPECT_GE(four.Seconds(), 0.004);
  EXPECT_LT(four.Seconds(), one.Seconds() / 2);
}

TEST(LimitTest, HaveBandwidthsThatAMachineCanHave) {
  constexpr int64_t kBytes = 4 << 20;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Pass copy,
                               MemcpyPass(kBytes, TimeKind::kProcessor));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<offload::Triad> triad,
                               offload::Triad::Create(2, kBytes));
  for (const Pass& pass :
       {copy, TriadPass(triad, double{kBytes}, TimeKind::kWall),
        TriadPass(triad, double{kBytes}, TimeKind::kProcessor)}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const double seconds, pass());
    EXPECT_GT(kBytes / seconds, 1e6);
    EXPECT_LT(kBytes / seconds, 1e14);
  }
  EXPECT_THAT(MemcpyPass(INT64_MAX, TimeKind::kWall),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(WeightsTest, AreNormal) {
  constexpr int64_t kCount = 100'001;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer weights,
                               NormalWeights(DType::kF64, kCount, 1));
  ASSERT_EQ(weights.size(), kCount * sizeof(double));
  const auto* values = reinterpret_cast<const double*>(weights.data());
  double moments[5] = {};
  int64_t within = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double value = values[i] / kDeviation;
    for (int power = 1; power <= 4; ++power) {
      moments[power] += std::pow(value, power) / kCount;
    }
    within += std::fabs(value) < 1;
  }
  EXPECT_NEAR(moments[1], 0, 0.02);
  EXPECT_NEAR(moments[2], 1, 0.02);
  EXPECT_NEAR(moments[3], 0, 0.05);
  EXPECT_NEAR(moments[4], 3, 0.1);
  EXPECT_NEAR(static_cast<double>(within) / kCount, 0.6827, 0.006);
}

TEST(WeightsTest, AreTheSameForASeedAndOthersForAnother) {
  const auto make = [](uint64_t seed) {
    const Buffer weights = NormalWeights(DType::kBF16, 5001, seed).value();
    return std::string(reinterpret_cast<const char*>(weights.data()),
                       weights.size());
  };
  EXPECT_EQ(make(1), make(1));
  EXPECT_NE(make(1), make(2));
  const auto bytes = [](uint64_t seed, int64_t count) {
    const Buffer random = RandomBytes(count, seed).value();
    return std::string(reinterpret_cast<const char*>(random.data()),
                       random.size());
  };
  EXPECT_EQ(bytes(1, 1003), bytes(1, 1003));
  EXPECT_NE(bytes(1, 1003), bytes(2, 1003));
  EXPECT_EQ(bytes(1, 1003).substr(0, 13), bytes(1, 13));
  EXPECT_EQ(bytes(1, 0), "");
}

}  // namespace
}  // namespace tessera::offload_bench
