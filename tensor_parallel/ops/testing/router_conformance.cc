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
                 const std::vector<int64_t>& loads, int64_t sequences,
                 double balance, double z_loss) {
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
        const auto begin = loads.begin() + s * c.experts;
        const auto choices = static_cast<double>(
            std::accumulate(begin, begin + c.experts, int64_t{0}));
        const double length =
            choices / static_cast<double>(c.options.per_token);
        sum += balance * static_cast<double>(c.experts * begin[e]) /
               (choices * length) * scores[e] / all;
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
        constexpr double kBalance = 0.7;
        std::vector<int64_t> loads(sequences * c.experts);
        for (int64_t& load : loads)
          load = 1 + static_cast<int64_t>(random() % 9);
        TestTensor gradient(dtype, {c.tokens, c.experts});
        std::vector<int64_t> experts(c.tokens * k);
        logits.Randomise(random);
        weights_gradient.Randomise(random);
        const TensorView ids =
            *TensorView::Of(std::span(experts), {{c.tokens, k}});
        const TensorView counts =
            *TensorView::Of(std::span(loads), {{sequences, c.experts}});
        TESSERA_ASSERT_OK(ops().Run(op::Route{
            c.options, logits.view(), none.view(), weights.view(), ids}));
        TESSERA_ASSERT_OK(ops().Run(op::RouteGradient{
            c.options, logits.view(), ids, weights_gradient.view(), counts,
            kBalance, z_loss, gradient.view()}));
        std::vector<double> values = logits.values(), expected;
        for (double& value : values) {
          const double middle = value;
          const auto at = [&](double offset) {
            value = middle + offset;
            return Objective(c, values, experts, weights_gradient.values(),
                             loads, sequences, kBalance, z_loss);
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

struct Groups {
  std::vector<int64_t> loads, slots, tokens;
};

// GroupByExpert by one search for each expert.
Groups GroupsOf(const std::vector<int64_t>& experts, int64_t per_token,
                int64_t count, int64_t sequences, int64_t capacity,
                bool padded) {
  const auto choices = static_cast<int64_t>(experts.size());
  Groups groups;
  groups.loads.resize(sequences * count);
  for (int64_t i = 0; i < choices; ++i) {
    ++groups.loads[i / (choices / sequences) * count + experts[i]];
  }
  for (int64_t e = 0; e < count; ++e) {
    int64_t rows = 0;
    for (int64_t i = 0; i < choices; ++i) {
      if (experts[i] != e || rows == capacity) continue;
      groups.slots.push_back(i);
      groups.tokens.push_back(i / per_token);
      ++rows;
    }
    for (; padded && rows < capacity; ++rows) {
      groups.slots.push_back(-1);
      groups.tokens.push_back(-1);
    }
  }
  if (!padded) {
    groups.slots.resize(experts.size(), -1);
    groups.tokens.resize(experts.size(), -1);
  }
  return groups;
}

TEST_P(OpsConformanceTest, GroupByExpertIsAStableSort) {
  std::mt19937_64 random(14);
  for (const auto& [sequences, length, per_token, count] :
       std::vector<std::array<int64_t, 4>>{{0, 0, 2, 3},
                                           {1, 1, 1, 1},
                                           {3, 5, 2, 7},
                                           {2, 700, 3, 40},
                                           {1, 33, 4, 300}}) {
    const int64_t tokens = sequences * length;
    std::vector<int64_t> experts(tokens * per_token);
    for (int64_t& expert : experts) {  // Some experts have most of the rows.
      expert = static_cast<int64_t>(random() % (1 + random() % count));
    }
    for (const auto& [capacity, padded] :
         std::vector<std::pair<int64_t, bool>>{{-1, false},
                                               {0, false},
                                               {3, false},
                                               {0, true},
                                               {3, true},
                                               {tokens, true}}) {
      const Groups expected =
          GroupsOf(experts, per_token, count, sequences, capacity, padded);
      const int64_t rows = static_cast<int64_t>(expected.slots.size());
      Groups actual = {.loads = std::vector<int64_t>(sequences * count, 9),
                       .slots = std::vector<int64_t>(rows, 9),
                       .tokens = std::vector<int64_t>(rows, 9)};
      TESSERA_ASSERT_OK(ops().Run(op::GroupByExpert{
          capacity, padded,
          *TensorView::Of(std::span(experts), {{tokens, per_token}}),
          *TensorView::Of(std::span(actual.loads), {{sequences, count}}),
          *TensorView::Of(std::span(actual.slots), {{rows}}),
          *TensorView::Of(std::span(actual.tokens), {{rows}})}));
      EXPECT_EQ(actual.loads, expected.loads);
      EXPECT_EQ(actual.slots, expected.slots);
      EXPECT_EQ(actual.tokens, expected.tokens);
    }
  }
}

TEST_P(OpsConformanceTest, GroupByExpertRejectsInvalidOperands) {
  std::vector<int64_t> numbers(12);
  const auto list = [&](std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return *TensorView::Of(std::span(numbers).first(count), shape);
  };
  const auto group = [&](op::GroupByExpert call) {
    return ops().Run(std::move(call));
  };
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(
      group({-1, false, list({4, 2}), list({3, 2}), list({8}), list({8})}),
      refused("GroupByExpert: \"loads\" is of 3 sequences of 4 tokens; "
              "give a number that divides them."));
  EXPECT_THAT(
      group({-1, true, list({4, 2}), list({2, 2}), list({8}), list({8})}),
      refused("GroupByExpert: padded rows need a capacity of at least 0."));
  EXPECT_THAT(
      group({3, true, list({4, 2}), list({2, 2}), list({8}), list({6})}),
      refused("GroupByExpert: \"slots\" has 8 numbers; it should have 6"));
  EXPECT_THAT(group({-1, false, list({8}), list({2, 2}), list({8}), list({8})}),
              refused("should be matrices"));
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
  const TestTensor slopes(DType::kF32, {4, 3});
  std::vector<int64_t> experts(8), many(16), loads(9);
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
                                  *TensorView::Of(std::span(loads), {{3, 3}}),
                                  0,
                                  0,
                                  slopes.view()}),
      refused("RouteGradient: \"loads\" is of 3 sequences of 4 tokens"));
  EXPECT_THAT(
      ops().Run(op::ScaleRows{none.view(), weights.view(), weights.view()}),
      refused("ScaleRows: \"scales\" has shape [0]"));
}

}  // namespace
}  // namespace tessera::tensor_parallel
