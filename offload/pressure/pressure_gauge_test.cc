#include "offload/pressure/pressure_gauge.h"

#include <random>
#include <sstream>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

MemoryReading At(double pressure) {
  MemoryReading reading;
  reading.limits.push_back(
      {"test", static_cast<int64_t>(pressure * 10000 + 0.5), 0, 10000});
  return reading;
}

TEST(PressureGaugeTest, LevelsRiseAtOnce) {
  for (const auto& [pressure, level] :
       std::vector<std::pair<double, PressureLevel>>{
           {0.39, PressureLevel::kNone},
           {0.40, PressureLevel::kModerate},
           {0.5999, PressureLevel::kModerate},
           {0.60, PressureLevel::kElevated},
           {0.75, PressureLevel::kHigh},
           {0.90, PressureLevel::kCritical},
           {2.00, PressureLevel::kCritical}}) {
    PressureGauge gauge;
    EXPECT_EQ(gauge.Update(At(pressure), 1), level) << pressure;
  }
}

TEST(PressureGaugeTest, LevelsFallOnlyAfterStayingBelowTheMargin) {
  PressureGauge gauge({.margin = 0.05, .hold_ns = 2 * kSecond});
  EXPECT_EQ(gauge.Update(At(0.95), 0), PressureLevel::kCritical);
  // Below the threshold, but not by the margin.
  EXPECT_EQ(gauge.Update(At(0.86), 10 * kSecond), PressureLevel::kCritical);
  EXPECT_EQ(gauge.Update(At(0.80), 11 * kSecond), PressureLevel::kCritical);
  // Back within the margin: the wait restarts.
  EXPECT_EQ(gauge.Update(At(0.86), 11 * kSecond + 1), PressureLevel::kCritical);
  EXPECT_EQ(gauge.Update(At(0.80), 13 * kSecond), PressureLevel::kCritical);
  EXPECT_EQ(gauge.Update(At(0.80), 13 * kSecond + 1), PressureLevel::kHigh);
  EXPECT_EQ(gauge.Update(At(0.10), 14 * kSecond), PressureLevel::kHigh);
  EXPECT_EQ(gauge.Update(At(0.10), 17 * kSecond), PressureLevel::kNone);
  EXPECT_EQ(gauge.Update(At(0.61), 17 * kSecond), PressureLevel::kElevated);
}

// Compares with a direct implementation of the rule over the whole history.
TEST(PressureGaugeTest, AgreesWithTheRuleOnRandomHistories) {
  std::mt19937_64 random(31);
  for (int round = 0; round < 200; ++round) {
    const GaugeOptions options{.margin = 0.05, .hold_ns = 10};
    PressureGauge gauge(options);
    std::vector<std::pair<int64_t, double>> history;
    int expected = 0;
    int64_t now = 0;
    for (int i = 0; i < 200; ++i) {
      now += static_cast<int64_t>(random() % 6);
      const double pressure =
          static_cast<double>(random() % 100) / (i % 40 < 20 ? 100 : 200);
      history.push_back({now, pressure});
      int reached = 0;
      for (int l = 1; l < 5; ++l) {
        if (At(pressure).pressure() >= kLevelThresholds[l]) reached = l;
      }
      expected = std::max(expected, reached);
      while (expected > reached) {
        int64_t since = 0;
        for (const auto& [at, p] : history) {
          if (At(p).pressure() >= kLevelThresholds[expected] - 0.05) since = at;
        }
        if (now - since < options.hold_ns || now == since) break;
        --expected;
      }
      ASSERT_EQ(static_cast<int>(gauge.Update(At(pressure), now)), expected);
    }
  }
}

TEST(PressureGaugeTest, StallsRaiseThePressure) {
  MemoryReading reading = At(0.2);
  EXPECT_DOUBLE_EQ(PressureOf(reading, {}), 0.2);
  reading.stall = {19, 9};
  EXPECT_DOUBLE_EQ(PressureOf(reading, {}), 0.2);
  reading.stall = {20, 0};
  EXPECT_DOUBLE_EQ(PressureOf(reading, {}), 0.75);
  reading.stall = {20, 10};
  EXPECT_DOUBLE_EQ(PressureOf(reading, {}), 0.90);
  EXPECT_DOUBLE_EQ(PressureOf(reading, {.some_stall = 101, .full_stall = 101}),
                   0.2);
}

TEST(PressureGaugeTest, HandlesNoLimitAndZeroLimit) {
  PressureGauge gauge;
  EXPECT_EQ(gauge.Update({}, 1), PressureLevel::kNone);
  MemoryReading reading;
  reading.limits.push_back({"zero", 0, 0, 0});
  EXPECT_EQ(gauge.Update(reading, 1), PressureLevel::kCritical);
  EXPECT_EQ(reading.tightest()->source, "zero");
}

TEST(PressureGaugeTest, LevelsHaveNames) {
  std::ostringstream out;
  out << PressureLevel::kElevated << " " << static_cast<PressureLevel>(9);
  EXPECT_EQ(out.str(), "elevated invalid");
}

}  // namespace
}  // namespace tessera::offload
