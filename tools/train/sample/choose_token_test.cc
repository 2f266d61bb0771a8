#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
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
    EXPECT_THAT(ChooseToken(logits, {.temperature = 0}, uniform),
                IsOkAndHolds(1));
  }
}

TEST(ChooseTokenTest, FrequenciesMatchSoftmax) {
  const std::vector<double> logits = {1000, 1001, 998.5};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    constexpr int kDraws = 30'000;
    std::vector<double> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const int64_t token, ChooseToken(logits, {.temperature = temperature},
                                           (i + 0.5) / kDraws));
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
  EXPECT_THAT(ChooseToken(logits, {.temperature = 1}, 0), IsOkAndHolds(1));
  EXPECT_THAT(ChooseToken(logits, {.temperature = 1}, 0.49), IsOkAndHolds(1));
  EXPECT_THAT(ChooseToken(logits, {.temperature = 1}, 0.5), IsOkAndHolds(3));
  EXPECT_THAT(ChooseToken(logits, {.temperature = 1}, std::nextafter(1.0, 0.0)),
              IsOkAndHolds(3));
  // At a very low temperature only the largest logit remains.
  EXPECT_THAT(ChooseToken({{1.0, 2.0}}, {.temperature = 1e-300}, 0.999),
              IsOkAndHolds(1));
}

// The probability of each token, by the definition: tries every number of the
// most likely tokens.
std::vector<double> Probabilities(const std::vector<double>& logits,
                                  const SampleOptions& options) {
  const size_t n = logits.size();
  const auto kept = [&](size_t count) {
    std::vector<bool> is_kept(n);
    for (size_t i = 0; i < n; ++i) {
      size_t more_likely = 0;
      for (size_t j = 0; j < n; ++j) {
        more_likely +=
            logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
      }
      is_kept[i] = more_likely < count;
    }
    return is_kept;
  };
  const auto masses = [&](const std::vector<bool>& is_kept) {
    std::vector<double> mass(n);
    for (size_t i = 0; i < n; ++i) {
      if (is_kept[i]) mass[i] = std::exp(logits[i] / options.temperature);
    }
    return mass;
  };
  const auto sum = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
  };
  const size_t k =
      options.top_k == 0 ? n : std::min(n, static_cast<size_t>(options.top_k));
  const double all = sum(masses(kept(k)));
  size_t count = 1;
  while (count < k && sum(masses(kept(count))) < options.top_p * all) ++count;
  std::vector<double> mass = masses(kept(count));
  const double total = sum(mass);
  for (double& value : mass) value /= total;
  return mass;
}

TEST(ChooseTokenTest, TopKAndTopPMatchBruteForce) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 400; ++round) {
    std::vector<double> logits(1 + random() % 9);
    // Some are equal.
    for (double& logit : logits) {
      logit = static_cast<double>(random() % 12) / 3;
    }
    const SampleOptions options = {
        .temperature = 0.3 + 2 * uniform(random),
        .top_k = static_cast<int64_t>(random() % 12),
        .top_p = random() % 4 == 0 ? 1 : 1 - uniform(random)};
    const std::vector<double> expected = Probabilities(logits, options);
    double begin = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      // Token i is chosen inside of its interval of `uniform`, also near the
      // ends.
      if (expected[i] == 0) continue;
      for (const double place : {1e-9, 0.5, 1 - 1e-9}) {
        EXPECT_THAT(ChooseToken(logits, options, begin + place * expected[i]),
                    IsOkAndHolds(static_cast<int64_t>(i)));
      }
      begin += expected[i];
    }
    EXPECT_NEAR(begin, 1, 1e-12);
  }
}

TEST(ChooseTokenTest, OneTokenIsAlwaysLeft) {
  const std::vector<double> logits = {0, 2, 2, -1};
  for (const double uniform : {0.0, 0.3, 0.999999}) {
    EXPECT_THAT(ChooseToken(logits, {.top_k = 1}, uniform), IsOkAndHolds(1));
    EXPECT_THAT(ChooseToken(logits, {.top_p = 1e-300}, uniform),
                IsOkAndHolds(1));
    EXPECT_THAT(ChooseToken({{3.0}}, {.top_k = 7, .top_p = 0.5}, uniform),
                IsOkAndHolds(0));
  }
}

TEST(ChooseTokenTest, RejectsInvalidOptions) {
  for (const double top_p : {0.0, -0.5, 1.01, std::nan("")}) {
    EXPECT_THAT(ChooseToken({{1.0}}, {.top_p = top_p}, 0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("above 0 and at most 1")));
  }
  EXPECT_THAT(ChooseToken({{1.0}}, {.top_k = -1}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the -1 most likely tokens")));
  EXPECT_THAT(ChooseToken({}, {}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (const double temperature : {-1.0, kInfinity, std::nan("")}) {
    EXPECT_THAT(ChooseToken({{1.0}}, {.temperature = temperature}, 0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("at least 0 and finite")));
  }
  for (const double logit : {std::nan(""), kInfinity, -kInfinity}) {
    EXPECT_THAT(ChooseToken({{1.0, logit}}, {}, 0),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("logit of token 1")));
  }
}

}  // namespace
}  // namespace tessera::train
