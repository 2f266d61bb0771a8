#include "offload/pressure/pressure_policy.h"

#include <memory>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

MemoryReading Used(int64_t used, int64_t limit) {
  MemoryReading reading;
  reading.limits.push_back({.source = "test", .used = used, .limit = limit});
  return reading;
}

TEST(PressurePolicyTest, StrategiesHaveDocumentedValues) {
  for (const auto& [strategy, percent, aggressiveness] :
       std::vector<std::tuple<PressureStrategy, int, double>>{
           {PressureStrategy::kConservative, 90, 0.2},
           {PressureStrategy::kBalanced, 75, 0.5},
           {PressureStrategy::kAggressive, 60, 0.8},
           {PressureStrategy::kExtreme, 40, 1.0}}) {
    const PressurePolicy& policy = PressurePolicy::Of(strategy);
    EXPECT_EQ(policy.strategy, strategy);
    EXPECT_DOUBLE_EQ(policy.threshold(), percent / 100.0);
    EXPECT_DOUBLE_EQ(policy.aggressiveness, aggressiveness);
    EXPECT_FALSE(policy.description.empty());
    for (int at = 0; at <= 100; ++at) {
      EXPECT_EQ(policy.BytesToMove(Used(at, 100), 1000) > 0, at >= percent)
          << policy.name << " at " << at;
    }
    // At the threshold the share decides.
    EXPECT_EQ(policy.BytesToMove(Used(percent, 100), 1000),
              static_cast<int64_t>(aggressiveness * 1000));
  }
}

TEST(PressurePolicyTest, MovesEnoughToGetBelowTheMargin) {
  const PressurePolicy policy;
  // 990 - 0.85 * 1000 = 140 is more than 0.2 * 500.
  EXPECT_EQ(policy.BytesToMove(Used(990, 1000), 500), 140);
  EXPECT_EQ(policy.BytesToMove(Used(990, 1000), 100), 100);
  MemoryReading two = Used(990, 1000);
  two.limits.push_back({.source = "larger", .used = 9900, .limit = 10000});
  EXPECT_EQ(policy.BytesToMove(two, 5000), 1400);
}

TEST(PressurePolicyTest, MovesAtMostTheMovableBytes) {
  for (const PressurePolicy& policy : kPressurePolicies) {
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

TEST(PressurePolicyTest, BudgetOfAccountingIsALimit) {
  const auto device = std::make_shared<Accounting>("device", 1000);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Reservation room,
      Accounting::Reserve(device, "weight", 750, Purpose::kParameters));
  MemoryReading reading;
  reading.limits.push_back(LimitOf("device", device->usage()));
  EXPECT_EQ(PressurePolicy().BytesToMove(reading, 600), 0);
  EXPECT_EQ(
      PressurePolicy::Of(PressureStrategy::kBalanced).BytesToMove(reading, 600),
      300);
}

TEST(PressurePolicyTest, ParsesItsNames) {
  for (const PressurePolicy& policy : kPressurePolicies) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const PressurePolicy parsed,
                                 PressurePolicy::Parse(policy.name));
    EXPECT_EQ(parsed.strategy, policy.strategy);
  }
  EXPECT_THAT(PressurePolicy::Parse("bold"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"bold\" is unknown; allowed: conservative, "
                                 "balanced, aggressive, extreme")));
}

}  // namespace
}  // namespace tessera::offload
