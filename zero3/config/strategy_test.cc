#include "zero3/config/strategy.h"

#include <cstdint>
#include <limits>
#include <random>

#include "absl/numeric/int128.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

static_assert(EffectiveBudget(ByteSize(int64_t{32} << 30),
                              Strategy::kAggressive) ==
              ByteSize(20'615'843'020));
static_assert(EffectiveBudget(ByteSize(99), Strategy::kConservative) ==
              ByteSize(89));
static_assert(EffectiveBudget(ByteSize(99), Strategy::kBalanced) ==
              ByteSize(74));
static_assert(EffectiveBudget(ByteSize(99), Strategy::kExtreme) ==
              ByteSize(39));

TEST(StrategyTest, EveryNameHasItsRow) {
  const auto& names = topology::EnumNames<Strategy>::kTable;
  ASSERT_EQ(names.size(), kStrategies.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(names[i].value, kStrategies[i].strategy);
    EXPECT_EQ(&TraitsOf(names[i].value), &kStrategies[i]);
  }
  EXPECT_EQ(TraitsOf(static_cast<Strategy>(9)).threshold_percent, 40);
}

TEST(PercentOfTest, IsExactForAnyBytes) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 3000; ++round) {
    const auto bytes = static_cast<int64_t>(random() >> (1 + random() % 63));
    for (const int64_t percent : {0, 1, 20, 40, 50, 60, 75, 80, 90, 99, 100}) {
      const absl::int128 exact = absl::int128(bytes) * percent / 100;
      ASSERT_EQ(PercentOf(ByteSize(bytes), percent).bytes(),
                static_cast<int64_t>(exact));
    }
  }
  EXPECT_EQ(PercentOf(ByteSize(kMax), 100), ByteSize(kMax));
}

TEST(BytesToOffloadTest, NothingUpToTheThresholdAndAShareBeyondRoundedUp) {
  const auto offload = [](int64_t used, int64_t offloadable,
                          Strategy strategy) {
    return BytesToOffload(ByteSize(used), ByteSize(offloadable), ByteSize(1000),
                          strategy)
        .bytes();
  };
  EXPECT_EQ(offload(900, 100, Strategy::kConservative), 0);
  EXPECT_EQ(offload(901, 101, Strategy::kConservative), 21);
  EXPECT_EQ(offload(751, 101, Strategy::kBalanced), 51);
  EXPECT_EQ(offload(601, 101, Strategy::kAggressive), 81);
  EXPECT_EQ(offload(401, 101, Strategy::kExtreme), 101);
  EXPECT_EQ(offload(901, 1, Strategy::kConservative), 1);
  EXPECT_EQ(offload(901, 0, Strategy::kConservative), 0);
  EXPECT_EQ(BytesToOffload(ByteSize(kMax), ByteSize(kMax), ByteSize(0),
                           Strategy::kExtreme),
            ByteSize(kMax));
}

}  // namespace
}  // namespace tessera::zero3
