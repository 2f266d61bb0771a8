#include <cmath>
#include <limits>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/train/sample/generate.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ChooseTokenTest, TemperatureZeroTakesTheFirstOfTheLargest) {
  const std::vector<double> logits = {-1, 3, 2, 3};
  for (const double uniform : {0.0, 0.5, 0.999999}) {
    EXPECT_THAT(ChooseToken(logits, 0, uniform), IsOkAndHolds(1));
  }
}

TEST(ChooseTokenTest, TokensComeAsOftenAsTheSoftmaxSays) {
  const std::vector<double> logits = {1000, 1001, 998.5};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    constexpr int kDraws = 30'000;
    std::vector<double> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const int64_t token,
          ChooseToken(logits, temperature, (i + 0.5) / kDraws));
      ++counts[static_cast<size_t>(token)];
    }
    double sum = 0;
    for (const double logit : logits)
      sum += std::exp((logit - 1001) / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(counts[i] / kDraws,
                  std::exp((logits[i] - 1001) / temperature) / sum, 1e-4);
    }
  }
}

TEST(ChooseTokenTest, NeverTakesATokenOfProbabilityZero) {
  const std::vector<double> logits = {-1e6, 0, -1e6, 0, -1e6};
  EXPECT_THAT(ChooseToken(logits, 1, 0), IsOkAndHolds(1));
  EXPECT_THAT(ChooseToken(logits, 1, 0.49), IsOkAndHolds(1));
  EXPECT_THAT(ChooseToken(logits, 1, 0.5), IsOkAndHolds(3));
  EXPECT_THAT(ChooseToken(logits, 1, std::nextafter(1.0, 0.0)),
              IsOkAndHolds(3));
  // So cold that only the largest logit remains.
  EXPECT_THAT(ChooseToken({{1.0, 2.0}}, 1e-300, 0.999), IsOkAndHolds(1));
}

TEST(ChooseTokenTest, RefusesWhatIsNoChoice) {
  EXPECT_THAT(ChooseToken({}, 1, 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (const double temperature : {-1.0, kInfinity, std::nan("")}) {
    EXPECT_THAT(ChooseToken({{1.0}}, temperature, 0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("at least 0 and finite")));
  }
  for (const double logit : {std::nan(""), kInfinity, -kInfinity}) {
    EXPECT_THAT(ChooseToken({{1.0, logit}}, 1, 0),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("logit of token 1")));
  }
}

}  // namespace
}  // namespace tessera::train
