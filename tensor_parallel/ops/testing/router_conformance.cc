#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

struct Case {
  int64_t tokens, experts;
  RouterOptions options;
  bool biased = false;
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {{0, 3, {.per_token = 2}}, {4, 1, {}}};
  for (const RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool normalise : {true, false}) {
      for (const bool biased : {true, false}) {
        cases.push_back({9,
                         7,
                         {.score = score,
                          .per_token = 3,
                          .normalise = normalise,
                          .scale = 2.5},
                         biased});
      }
    }
  }
  for (const int64_t terms : {1, 2}) {
    for (const bool biased : {true, false}) {
      RouterOptions options = {.per_token = 3,
                               .groups = 4,
                               .groups_per_token = 2,
                               .group_terms = terms};
      cases.push_back({9, 12, options, biased});
      options.score = RouterScore::kSigmoid;
      cases.push_back({9, 12, options, biased});
      options.groups = 64;
      options.groups_per_token = 40;
      options.per_token = 6;
      cases.push_back({3, 128, options, biased});
    }
  }
  cases.push_back({4, 8, {.per_token = 2, .groups = 8, .groups_per_token = 3}});
  cases.push_back(
      {4,
       80,
       {.per_token = 7, .groups = 2, .groups_per_token = 1, .group_terms = 2}});
  cases.push_back({6, 70, {.per_token = 8}});
  cases.push_back({5, 33, {.per_token = 33, .normalise = false}});
  return cases;
}

std::vector<double> ScoresOf(const Case& c, const std::vector<double>& logits,
                             int64_t token) {
  std::vector<double> scores;
  double sum = 0;
  for (int64_t e = 0; e < c.experts; ++e) {
    const double logit = logits[token * c.experts + e];
    scores.push_back(c.options.score == RouterScore::kSoftmax
                         ? std::exp(logit)
                         : 1 / (1 + std::exp(-logit)));
    sum += scores.back();
  }
  if (c.options.score == RouterScore::kSoftmax) {
    for (double& score : scores) score /= sum;
  }
  return scores;
}

// Selects groups and then experts by sorting all scores.
std::vector<int64_t> BestExperts(const Case& c, std::vector<double> keys) {
  const int64_t size = c.experts / c.options.groups;
  std::vector<double> sums;
  for (int64_t first = 0; first < c.experts; first += size) {
    std::vector<double> group(keys.begin() + first,
                              keys.begin() + first + size);
    std::sort(group.rbegin(), group.rend());
    group.resize(c.options.group_terms);
    sums.push_back(std::accumulate(group.begin(), group.end(), 0.0));
  }
  std::vector<double> best = sums;
  std::sort(best.rbegin(), best.rend());
  for (int64_t e = 0; e < c.experts; ++e) {
    if (sums[e / size] < best[c.options.groups_per_token - 1]) {
      keys[e] = -std::numeric_limits<double>::infinity();
    }
  }
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return keys[a] > keys[b]; });
  order.resize(c.options.per_token);
  return order;
}

std::vector<double> WeightsOf(const Case& c, const std::vector<double>& logits,
                              const std::vector<int64_t>& experts) {
  std::vector<double> weights;
  const int64_t k = c.options.per_token;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const std::vector<double> scores = ScoresOf(c, logits, t);
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += scores[experts[t * k + i]];
    for (int64_t i = 0; i < k; ++i) {
      weights.push_back(c.options.scale * scores[experts[t * k + i]] /
                        (c.options.normalise ? sum : 1));
    }
  }
  return weights;
}

TEST_P(OpsConformanceTest, RouteChoosesTheLargestScoresAndWeighsThem) {
  std::mt19937_64 random(11);
  for (const DType dtype : kComputedTypes) {
    const DType statistics = StatisticsFor(dtype);
    for (const Case& c : Cases()) {
      const int64_t k = c.options.per_token;
      TestTensor logits(dtype, {c.tokens, c.experts}, 3);
      TestTensor bias(statistics, {c.biased ? c.experts : 0});
      TestTensor weights(statistics, {c.tokens, k});
      std::vector<int64_t> experts(c.tokens * k, -1);
      logits.Randomise(random, 2);
      bias.Randomise(random, 0.3);
      TESSERA_ASSERT_OK(ops().Run(
          op::Route{c.options, logits.view(), bias.view(), weights.view(),
                    *TensorView::Of(std::span(experts), {{c.tokens, k}})}));
      const std::vector<double> values = logits.values();
      for (int64_t t = 0; t < c.tokens; ++t) {
        std::vector<double> keys = ScoresOf(c, values, t);
        for (int64_t e = 0; c.biased && e < c.experts; ++e) {
          keys[e] += bias.at(e);
        }
        EXPECT_EQ(std::vector<int64_t>(experts.begin() + t * k,
                                       experts.begin() + (t + 1) * k),
                  BestExperts(c, keys));
      }
      ExpectClose(weights, WeightsOf(c, values, experts));
    }
  }
}

TEST_P(OpsConformanceTest, RouteTakesTheFirstOfEqualExpertsAndNaNLast) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  TestTensor logits(DType::kF32, {3, 5});
  logits.Set({1, 2, 2, 1, 2,           //
              kNaN, -1, kNaN, -2, -2,  //
              kNaN, kNaN, kNaN, kNaN, kNaN});
  TestTensor none(DType::kF32, {0}), weights(DType::kF32, {3, 4});
  std::vector<int64_t> experts(12);
  TESSERA_ASSERT_OK(
      ops().Run(op::Route{{.per_token = 4},
                          logits.view(),
                          none.view(),
                          weights.view(),
                          *TensorView::Of(std::span(experts), {{3, 4}})}));
  EXPECT_EQ(experts,
            (std::vector<int64_t>{1, 2, 4, 0, 1, 3, 4, 0, 0, 1, 2, 3}));
}

// The function whose gradient RouteGradient computes, in f64.
double Objective(const Case& c, const std::vector<double>& logits,
                 const std::vector<int64_t>& experts,
                 const std::vector<double>& weights_gradient,
                 const std::vector<double>& balance, int64_t sequences,
                 double z_loss) {
  double sum = 0;
  const std::vector<double> weights = WeightsOf(c, logits, experts);
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i] * weights_gradient[i];
  }
  for (int64_t t = 0; t < c.tokens; ++t) {
    const std::vector<double> scores = ScoresOf(c, logits, t);
    const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
    double exponentials = 0;
    for (int64_t e = 0; e < c.experts; ++e) {
      exponentials += std::exp(logits[t * c.experts + e]);
      if (sequences > 0) {
        const int64_t s = t / (c.tokens / sequences);
        sum += balance[s * c.experts + e] * scores[e] / all;
      }
    }
    sum += z_loss * std::log(exponentials) * std::log(exponentials);
  }
  return sum;
}

TEST_P(OpsConformanceTest, RouteGradientIsTheSlopeOfWeightsBalanceAndZLoss) {
  std::mt19937_64 random(12);
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    for (const Case& c : Cases()) {
      const int64_t k = c.options.per_token;
      for (const int64_t sequences : {int64_t{0}, int64_t{1}, int64_t{3}}) {
        if (sequences > 0 && c.tokens % sequences != 0) continue;
        const double z_loss = sequences == 1 ? 0 : 0.1;
        TestTensor logits(dtype, {c.tokens, c.experts}, 3);
        TestTensor weights(dtype, {c.tokens, k}), none(dtype, {0});
        TestTensor weights_gradient(dtype, {c.tokens, k});
        TestTensor balance(dtype, {sequences, c.experts});
        TestTensor gradient(dtype, {c.tokens, c.experts});
        std::vector<int64_t> experts(c.tokens * k);
        logits.Randomise(random);
        weights_gradient.Randomise(random);
        balance.Randomise(random);
        const TensorView ids =
            *TensorView::Of(std::span(experts), {{c.tokens, k}});
        TESSERA_ASSERT_OK(ops().Run(op::Route{
            c.options, logits.view(), none.view(), weights.view(), ids}));
        TESSERA_ASSERT_OK(ops().Run(op::RouteGradient{
            c.options, logits.view(), ids, weights_gradient.view(),
            balance.view(), z_loss, gradient.view()}));
        std::vector<double> values = logits.values(), expected;
        for (double& value : values) {
          const double middle = value;
          const auto at = [&](double offset) {
            value = middle + offset;
            return Objective(c, values, experts, weights_gradient.values(),
                             balance.values(), sequences, z_loss);
          };
          constexpr double kStep = 1e-3;
          const double near = at(kStep) - at(-kStep);
          const double far = at(2 * kStep) - at(-2 * kStep);
          value = middle;
          expected.push_back((8 * near - far) / (12 * kStep));
        }
        const std::vector<double> actual = gradient.values();
        const double allowed = dtype == DType::kF64 ? 1e-9 : 2e-5;
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_NEAR(actual[i], expected[i], allowed);
        }
      }
    }
  }
}

TEST_P(OpsConformanceTest, ScaleRowsAndItsGradient) {
  std::mt19937_64 random(13);
  for (const DType dtype : kComputedTypes) {
    for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{0, 5},
                                  {3, 0},
                                  {1, 1},
                                  {7, 33},
                                  {5, 1030}}) {
      const DType statistics = StatisticsFor(dtype);
      TestTensor scales(statistics, {rows}), slopes(statistics, {rows});
      TestTensor x(dtype, {rows, n}, 2), y(dtype, {rows, n}, 3);
      TestTensor gradient(dtype, {rows, n}, 1), result(dtype, {rows, n});
      for (TestTensor* tensor : {&scales, &slopes, &x, &y, &gradient}) {
        tensor->Randomise(random);
      }
      std::vector<double> scaled, products, sums(rows);
      for (int64_t i = 0; i < rows * n; ++i) {
        scaled.push_back(scales.at(i / n) * x.at(i));
        products.push_back(scales.at(i / n) * gradient.at(i));
        sums[i / n] += gradient.at(i) * x.at(i);
      }
      TESSERA_ASSERT_OK(
          ops().Run(op::ScaleRows{scales.view(), x.view(), y.view()}));
      ExpectClose(y, scaled);
      EXPECT_TRUE(y.GapsAreIntact());
      TESSERA_ASSERT_OK(ops().Run(
          op::ScaleRowsGradient{gradient.view(), scales.view(), x.view(),
                                result.view(), slopes.view()}));
      ExpectClose(result, products);
      ExpectClose(slopes, sums, std::sqrt(static_cast<double>(n)) + 1);
      // The result may overwrite x.
      TESSERA_ASSERT_OK(
          ops().Run(op::ScaleRows{scales.view(), x.view(), x.view()}));
      EXPECT_EQ(x.values(), y.values());
      TESSERA_ASSERT_OK(ops().Run(
          op::ScaleRowsGradient{gradient.view(), scales.view(), y.view(),
                                gradient.view(), slopes.view()}));
      EXPECT_EQ(gradient.values(), result.values());
    }
  }
}

TEST_P(OpsConformanceTest, RouterRefusesWhatDoesNotFit) {
  const TestTensor logits(DType::kF32, {4, 3}), none(DType::kF32, {0});
  const TestTensor weights(DType::kF32, {4, 2}), wide(DType::kF32, {4, 4});
  const TestTensor balance(DType::kF32, {3, 3}), slopes(DType::kF32, {4, 3});
  std::vector<int64_t> experts(8), many(16);
  const TensorView ids = *TensorView::Of(std::span(experts), {{4, 2}});
  const TensorView more = *TensorView::Of(std::span(many), {{4, 4}});
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(
      ops().Run(op::Route{
          {.per_token = 4}, logits.view(), none.view(), wide.view(), more}),
      refused("Route: 4 experts for a token; it should be at least 1 and at "
              "most their number, which is 3."));
  const auto route = [&](const RouterOptions& options) {
    return ops().Run(
        op::Route{options, logits.view(), none.view(), weights.view(), ids});
  };
  EXPECT_THAT(route({.per_token = 2, .groups = 2}),
              refused("Route: 2 groups of 3 experts; it should be a divisor of "
                      "their number, from 1 to 64."));
  EXPECT_THAT(route({.per_token = 2, .groups = 3, .groups_per_token = 4}),
              refused("Route: 4 groups for a token, of 3 groups of 1 experts"));
  EXPECT_THAT(route({.per_token = 2, .groups = 3, .groups_per_token = 1}),
              refused("it should be from 1 to 3, with at least 2 experts"));
  EXPECT_THAT(route({.per_token = 2,
                     .groups = 3,
                     .groups_per_token = 2,
                     .group_terms = 2}),
              refused("Route: the score of a group of 1 experts is the sum of "
                      "2; it should be 1 or 2"));
  EXPECT_THAT(ops().Run(op::Route{{.per_token = 2},
                                  logits.view(),
                                  weights.view(),
                                  weights.view(),
                                  ids}),
              refused("Route: \"bias\" has shape [4,2]"));
  EXPECT_THAT(
      ops().Run(op::RouteGradient{{.per_token = 2},
                                  logits.view(),
                                  ids,
                                  weights.view(),
                                  balance.view(),
                                  0,
                                  slopes.view()}),
      refused("RouteGradient: \"balance\" is of 3 sequences of 4 tokens"));
  EXPECT_THAT(
      ops().Run(op::ScaleRows{none.view(), weights.view(), weights.view()}),
      refused("ScaleRows: \"scales\" has shape [0]"));
}

}  // namespace
}  // namespace tessera::tensor_parallel
