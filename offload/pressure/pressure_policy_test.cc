#include "offload/pressure/pressure_policy.h"

#include <sstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

MemoryReading Used(int64_t used, int64_t limit) {
  MemoryReading reading;
  reading.limits.push_back({"test", used, 0, limit});
  return reading;
}

TEST(PressurePolicyTest, StrategiesActAndMoveAsStated) {
  for (const auto& [strategy, percent, aggressiveness] :
       std::vector<std::tuple<PressureStrategy, int, double>>{
           {PressureStrategy::kConservative, 90, 0.2},
           {PressureStrategy::kBalanced, 75, 0.5},
           {PressureStrategy::kAggressive, 60, 0.8},
           {PressureStrategy::kExtreme, 40, 1.0}}) {
    const PressurePolicy policy(strategy);
    EXPECT_DOUBLE_EQ(policy.threshold(), percent / 100.0);
    EXPECT_DOUBLE_EQ(policy.aggressiveness(), aggressiveness);
    for (int at = 0; at <= 100; ++at) {
      PressureGauge gauge;
      EXPECT_EQ(policy.Acts(gauge.Update(Used(at, 100), 1)), at >= percent)
          << strategy << " at " << at;
    }
    // Just at the threshold the share decides.
    EXPECT_EQ(policy.BytesToMove(Used(percent, 100), 1000),
              static_cast<int64_t>(aggressiveness * 1000));
  }
}

TEST(PressurePolicyTest, MovesEnoughToGetBelowTheMargin) {
  const PressurePolicy policy(PressureStrategy::kConservative, 0.05);
  // 990 - 0.85 * 1000 = 140 is more than 0.2 * 500.
  EXPECT_EQ(policy.BytesToMove(Used(990, 1000), 500), 140);
  EXPECT_EQ(policy.BytesToMove(Used(990, 1000), 100), 100);
  MemoryReading two = Used(990, 1000);
  two.limits.push_back({"tighter in bytes", 9900, 0, 10000});
  EXPECT_EQ(policy.BytesToMove(two, 5000), 1400);
}

TEST(PressurePolicyTest, NeverMoreThanCanBeMoved) {
  for (const auto strategy :
       {PressureStrategy::kConservative, PressureStrategy::kExtreme}) {
    const PressurePolicy policy(strategy);
    for (const int64_t movable :
         {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1} << 62}) {
      for (const int64_t used : {0, 50, 100, 300}) {
        const int64_t bytes = policy.BytesToMove(Used(used, 100), movable);
        EXPECT_GE(bytes, 0);
        EXPECT_LE(bytes, movable);
      }
    }
  }
}

TEST(PressurePolicyTest, NamesReadBack) {
  for (const auto strategy :
       {PressureStrategy::kConservative, PressureStrategy::kBalanced,
        PressureStrategy::kAggressive, PressureStrategy::kExtreme}) {
    std::ostringstream out;
    out << strategy;
    EXPECT_THAT(ParsePressureStrategy(out.str()), IsOkAndHolds(strategy));
  }
  EXPECT_THAT(ParsePressureStrategy("bold"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("allowed are conservative")));
}

}  // namespace
}  // namespace tessera::offload
