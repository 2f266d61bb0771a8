#include "tools/train/model/preference_loss.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::train {
namespace {

constexpr double kBeta = 0.3;

TEST(PreferenceLossTest, FollowsTheFormula) {
  const std::vector<double> policy = {-5, -7.5, -20, -1};
  const std::vector<double> reference = {-6, -7, -18, -3};
  const PreferenceLoss loss = PreferenceLossOf(kBeta, policy, reference);
  const double z[] = {kBeta * (1 + 0.5), kBeta * (-2 - 2)};
  double mean = 0;
  for (const double one : z) mean -= std::log(1 / (1 + std::exp(-one))) / 2;
  EXPECT_NEAR(loss.mean, mean, 1e-15);
  EXPECT_NEAR(loss.rewards.chosen, kBeta * (1 - 2), 1e-15);
  EXPECT_NEAR(loss.rewards.rejected, kBeta * (-0.5 + 2), 1e-15);
  EXPECT_EQ(loss.rewards.won, 1);
}

TEST(PreferenceLossTest, SlopesAreItsDerivatives) {
  const std::vector<double> reference = {-6, -7, -18, -3};
  const std::vector<double> policy = {-5, -7.5, -20, -1};
  const PreferenceLoss loss = PreferenceLossOf(kBeta, policy, reference);
  ASSERT_EQ(loss.slopes.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    constexpr double kStep = 1e-6;
    std::vector<double> more = policy, less = policy;
    more[i] -= kStep;  // Slopes are by negative log-probabilities.
    less[i] += kStep;
    EXPECT_NEAR(loss.slopes[i],
                (PreferenceLossOf(kBeta, more, reference).mean -
                 PreferenceLossOf(kBeta, less, reference).mean) /
                    (2 * kStep),
                1e-8);
  }
}

TEST(PreferenceLossTest, IsFiniteForExtremeProbabilities) {
  for (const double large : {1e3, 1e6}) {
    const std::vector<double> zeros(2);
    const PreferenceLoss bad = PreferenceLossOf(1, {{-large, 0}}, zeros);
    EXPECT_EQ(bad.mean, large);
    EXPECT_EQ(bad.slopes[0], 1);
    const PreferenceLoss good = PreferenceLossOf(1, {{0, -large}}, zeros);
    EXPECT_EQ(good.mean, 0);
    EXPECT_EQ(good.slopes[0], 0);
  }
}

}  // namespace
}  // namespace tessera::train
