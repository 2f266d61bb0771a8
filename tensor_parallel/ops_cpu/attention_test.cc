#include "tensor_parallel/ops_cpu/attention.h"

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
#include "tensor_parallel/ops_cpu/matrices.h"

namespace tessera::tensor_parallel::cpu {
namespace {

using ::testing::HasSubstr;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

DType StatisticsFor(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

std::vector<int64_t> Run(int64_t begin, int64_t count) {
  std::vector<int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

struct Sizes {
  int64_t queries, keys, heads, kv_heads, d;
};

// A problem with its inputs, its state and its gradients.
struct Problem {
  Problem(DType dtype, const Sizes& s, std::mt19937_64& random)
      : sizes(s),
        query(dtype, {s.queries, s.heads, s.d}, 3),
        key(dtype, {s.keys, s.kv_heads, s.d}, 2),
        value(dtype, {s.keys, s.kv_heads, s.d}, 5),
        output(StatisticsFor(dtype), {s.queries, s.heads, s.d}),
        log_sum_exp(StatisticsFor(dtype), {s.queries, s.heads}),
        output_gradient(dtype, {s.queries, s.heads, s.d}, 1),
        delta(StatisticsFor(dtype), {s.queries, s.heads}),
        query_gradient(StatisticsFor(dtype), {s.queries, s.heads, s.d}),
        key_gradient(StatisticsFor(dtype), {s.keys, s.kv_heads, s.d}),
        value_gradient(StatisticsFor(dtype), {s.keys, s.kv_heads, s.d}),
        query_positions(Run(s.keys - s.queries, s.queries)),
        key_positions(Run(0, s.keys)),
        scale(1 / std::sqrt(static_cast<double>(std::max<int64_t>(s.d, 1)))) {
    query.Randomise(random);
    key.Randomise(random);
    value.Randomise(random);
    output_gradient.Randomise(random);
    Reset();
  }

  void Reset() {
    output.Set(std::vector<double>(output.size(), 0));
    log_sum_exp.Set(std::vector<double>(log_sum_exp.size(), kNothing));
  }

  AttentionBlock Block() const {
    return {query.view(),  key.view(), value.view(), query_positions,
            key_positions, causal,     scale};
  }
  // A block of keys.
  AttentionBlock Block(int64_t begin, int64_t end) const {
    return {query.view(),
            *key.view().Narrow(0, begin, end - begin),
            *value.view().Narrow(0, begin, end - begin),
            query_positions,
            std::span(key_positions).subspan(begin, end - begin),
            causal,
            scale};
  }
  AttentionState State() const { return {output.view(), log_sum_exp.view()}; }
  AttentionGradients Gradients() const {
    return {output_gradient.view(), log_sum_exp.view(),  delta.view(),
            query_gradient.view(),  key_gradient.view(), value_gradient.view()};
  }
  AttentionGradients Gradients(int64_t begin, int64_t end) const {
    AttentionGradients part = Gradients();
    part.key_gradient = *key_gradient.view().Narrow(0, begin, end - begin);
    part.value_gradient = *value_gradient.view().Narrow(0, begin, end - begin);
    return part;
  }
  bool Sees(int64_t q, int64_t k) const {
    return !causal || key_positions[k] <= query_positions[q];
  }

  Sizes sizes;
  TestTensor query, key, value, output, log_sum_exp, output_gradient, delta;
  TestTensor query_gradient, key_gradient, value_gradient;
  std::vector<int64_t> query_positions, key_positions;
  bool causal = true;
  double scale;
};

// The textbook formulas for probabilities, outputs and gradients, in f64.
struct Reference {
  explicit Reference(const Problem& p)
      : output(p.output.size(), 0),
        log_sum_exp(p.log_sum_exp.size(), kNothing),
        delta(p.delta.size(), 0),
        query_gradient(p.query.size(), 0),
        key_gradient(p.key.size(), 0),
        value_gradient(p.value.size(), 0) {
    const int64_t d = p.sizes.d, group = p.sizes.heads / p.sizes.kv_heads;
    for (int64_t i = 0; i < p.sizes.queries * p.sizes.heads; ++i) {
      const int64_t q = i / p.sizes.heads;
      const int64_t kv_head = i % p.sizes.heads / group;
      const auto at = [&](int64_t k) {
        return (k * p.sizes.kv_heads + kv_head) * d;
      };
      const auto dot = [&](const TestTensor& a, int64_t x, const TestTensor& b,
                           int64_t y) {
        double sum = 0;
        for (int64_t j = 0; j < d; ++j) sum += a.at(x + j) * b.at(y + j);
        return sum;
      };
      std::vector<double> scores(p.sizes.keys, kNothing);
      for (int64_t k = 0; k < p.sizes.keys; ++k) {
        if (p.Sees(q, k)) {
          scores[k] = p.scale * dot(p.query, i * d, p.key, at(k));
        }
      }
      double largest = kNothing, sum = 0;
      for (double score : scores) largest = std::max(largest, score);
      if (largest == kNothing) continue;
      for (double score : scores) sum += std::exp(score - largest);
      log_sum_exp[i] = largest + std::log(sum);
      std::vector<double> shares(p.sizes.keys);
      for (int64_t k = 0; k < p.sizes.keys; ++k) {
        shares[k] = std::exp(scores[k] - log_sum_exp[i]);
        for (int64_t j = 0; j < d; ++j) {
          output[i * d + j] += shares[k] * p.value.at(at(k) + j);
        }
      }
      for (int64_t j = 0; j < d; ++j) {
        delta[i] += output[i * d + j] * p.output_gradient.at(i * d + j);
      }
      for (int64_t k = 0; k < p.sizes.keys; ++k) {
        if (!p.Sees(q, k)) continue;
        const double slope =
            shares[k] *
            (dot(p.output_gradient, i * d, p.value, at(k)) - delta[i]);
        for (int64_t j = 0; j < d; ++j) {
          query_gradient[i * d + j] += p.scale * slope * p.key.at(at(k) + j);
          key_gradient[at(k) + j] += p.scale * slope * p.query.at(i * d + j);
          value_gradient[at(k) + j] +=
              shares[k] * p.output_gradient.at(i * d + j);
        }
      }
    }
  }

  std::vector<double> output, log_sum_exp, delta;
  std::vector<double> query_gradient, key_gradient, value_gradient;
};

void ExpectIsReference(Problem& p) {
  const Reference reference(p);
  TESSERA_ASSERT_OK(Attend(p.Block(), p.State()));
  ExpectClose(p.output, reference.output);
  ExpectClose(p.log_sum_exp, reference.log_sum_exp);
  p.delta.Set(reference.delta);
  TESSERA_ASSERT_OK(AttendGradient(p.Block(), p.Gradients()));
  const double sums = std::sqrt(static_cast<double>(p.sizes.queries) + 1);
  ExpectClose(p.query_gradient, reference.query_gradient, 2);
  ExpectClose(p.key_gradient, reference.key_gradient, 2 + sums);
  ExpectClose(p.value_gradient, reference.value_gradient, 2 + sums);
}

constexpr Sizes kSizes[] = {{1, 1, 1, 1, 1},    {5, 5, 2, 2, 8},
                            {7, 7, 6, 2, 16},   {33, 47, 4, 1, 20},
                            {1, 300, 8, 2, 9},  {300, 300, 1, 1, 5},
                            {70, 600, 4, 2, 3}, {270, 31, 2, 1, 7}};

TEST(Attention, IsTheTextbooksForEveryTypeAndManySizes) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Sizes& sizes : kSizes) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << sizes.queries << "x" << sizes.keys
                     << "x" << sizes.heads << (causal ? " causal" : ""));
        Problem p(dtype, sizes, random);
        p.causal = causal;
        ExpectIsReference(p);
        EXPECT_TRUE(p.query.GapsAreIntact() && p.key.GapsAreIntact());
      }
    }
  }
}

TEST(Attention, TakesPositionsInAnyOrderAndWithRepeats) {
  std::mt19937_64 random(2);
  for (const Sizes& sizes : kSizes) {
    Problem p(DType::kF64, sizes, random);
    std::uniform_int_distribution<int64_t> position(-3, sizes.keys);
    for (int64_t& x : p.query_positions) x = position(random);
    for (int64_t& x : p.key_positions) x = position(random);
    ExpectIsReference(p);
  }
}

TEST(Attention, TakesTwoRunsAsZigzagLayoutsHaveThem) {
  std::mt19937_64 random(3);
  Problem p(DType::kF64, {60, 560, 2, 1, 4}, random);
  for (int64_t i = 0; i < 60; ++i) {
    p.query_positions[i] = i < 30 ? 200 + i : 700 + i;
  }
  for (int64_t i = 0; i < 560; ++i) {
    p.key_positions[i] = i < 280 ? i : 500 + i;
  }
  ExpectIsReference(p);
}

TEST(Attention, MergedOverSplitsOfKeysIsUnsplit) {
  std::mt19937_64 random(4);
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    for (int repeat = 0; repeat < 8; ++repeat) {
      Problem p(dtype, {50, 300, 4, 2, 6}, random);
      std::shuffle(p.key_positions.begin(), p.key_positions.end(), random);
      const Reference reference(p);
      std::vector<int64_t> cuts = {0, 300};
      for (int i = 0; i < repeat; ++i) cuts.push_back(random() % 301);
      std::sort(cuts.begin(), cuts.end());
      std::vector<size_t> order(cuts.size() - 1);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (size_t part : order) {
        TESSERA_ASSERT_OK(
            Attend(p.Block(cuts[part], cuts[part + 1]), p.State()));
      }
      ExpectClose(p.output, reference.output);
      ExpectClose(p.log_sum_exp, reference.log_sum_exp);
      p.delta.Set(reference.delta);
      for (size_t part : order) {
        TESSERA_ASSERT_OK(
            AttendGradient(p.Block(cuts[part], cuts[part + 1]),
                           p.Gradients(cuts[part], cuts[part + 1])));
      }
      ExpectClose(p.query_gradient, reference.query_gradient, 2);
      ExpectClose(p.key_gradient, reference.key_gradient, 8);
      ExpectClose(p.value_gradient, reference.value_gradient, 8);
    }
  }
}

TEST(Attention, GradientsAreFiniteDifferences) {
  std::mt19937_64 random(5);
  Problem p(DType::kF64, {6, 9, 4, 2, 5}, random);
  const auto f = [&] {
    p.Reset();
    EXPECT_THAT(Attend(p.Block(), p.State()), IsOk());
    return Dot(p.output_gradient, p.output);
  };
  f();
  for (int64_t i = 0; i < p.delta.size(); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < 5; ++j) {
      sum += p.output.at(i * 5 + j) * p.output_gradient.at(i * 5 + j);
    }
    p.delta.set(i, sum);
  }
  TESSERA_ASSERT_OK(AttendGradient(p.Block(), p.Gradients()));
  for (auto [x, gradient] : {std::pair{&p.query, &p.query_gradient},
                             std::pair{&p.key, &p.key_gradient},
                             std::pair{&p.value, &p.value_gradient}}) {
    for (int64_t i = 0; i < x->size(); ++i) {
      EXPECT_NEAR(gradient->at(i), Slope(*x, i, f), 1e-8) << i;
    }
  }
}

TEST(Attention, AddsToGradients) {
  std::mt19937_64 random(6);
  Problem p(DType::kF64, {4, 4, 2, 1, 3}, random);
  TESSERA_ASSERT_OK(Attend(p.Block(), p.State()));
  TESSERA_ASSERT_OK(AttendGradient(p.Block(), p.Gradients()));
  std::vector<double> twice = p.key_gradient.values();
  for (double& x : twice) x *= 2;
  TESSERA_ASSERT_OK(AttendGradient(p.Block(), p.Gradients()));
  ExpectClose(p.key_gradient, twice);
}

TEST(Attention, LeavesAQueryThatSeesNothingAsItWas) {
  std::mt19937_64 random(7);
  for (const DType dtype : kComputedTypes) {
    Problem p(dtype, {3, 5, 2, 1, 4}, random);
    p.query_positions = {-1, 100, -7};
    TESSERA_ASSERT_OK(Attend(p.Block(), p.State()));
    for (int64_t row : {0, 1, 4, 5}) {
      EXPECT_EQ(p.log_sum_exp.at(row), kNothing);
      for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(p.output.at(row * 4 + j), 0);
    }
    EXPECT_NE(p.log_sum_exp.at(2), kNothing);
    TESSERA_ASSERT_OK(AttendGradient(p.Block(), p.Gradients()));
    for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(p.query_gradient.at(j), 0);

    // A later block without visible keys changes no bit.
    const auto before = p.output.bytes();
    p.query_positions = {-1, -1, -1};
    TESSERA_ASSERT_OK(Attend(p.Block(), p.State()));
    EXPECT_EQ(p.output.bytes(), before);
  }
}

TEST(Attention, SurvivesScoresThatWouldOverflow) {
  std::mt19937_64 random(8);
  Problem p(DType::kF32, {40, 40, 2, 2, 8}, random);
  p.scale = 300;
  const Reference reference(p);
  TESSERA_ASSERT_OK(Attend(p.Block(), p.State()));
  for (const double x : p.output.values()) EXPECT_TRUE(std::isfinite(x));
  ExpectClose(p.log_sum_exp, reference.log_sum_exp, 1000);
}

TEST(Attention, TakesNothingAtAll) {
  std::mt19937_64 random(9);
  for (const Sizes& sizes :
       {Sizes{0, 3, 2, 1, 4}, Sizes{3, 0, 2, 1, 4}, Sizes{3, 3, 0, 0, 4},
        Sizes{3, 3, 2, 1, 0}, Sizes{0, 0, 0, 0, 0}}) {
    Problem p(DType::kF32, sizes, random);
    EXPECT_THAT(Attend(p.Block(), p.State()), IsOk());
    EXPECT_THAT(AttendGradient(p.Block(), p.Gradients()), IsOk());
    if (sizes.keys == 0 && sizes.queries > 0) {
      EXPECT_EQ(p.log_sum_exp.at(0), kNothing);
    }
  }
}

TEST(Attention, RefusesWhatDoesNotFitAndWritesNothing) {
  std::mt19937_64 random(10);
  Problem p(DType::kF32, {4, 6, 4, 2, 3}, random);
  const auto before = p.output.bytes();
  const auto refuses = [&](const AttentionBlock& block, const char* text) {
    EXPECT_THAT(Attend(block, p.State()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    EXPECT_THAT(AttendGradient(block, p.Gradients()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    EXPECT_EQ(p.output.bytes(), before);
  };
  AttentionBlock block = p.Block();
  block.key_positions = block.key_positions.subspan(1);
  refuses(block, "\"key_positions\" has 5 numbers; it should have 6");
  block = p.Block();
  block.value = *p.value.view().Narrow(0, 0, 5);
  refuses(block, "\"value\" has shape [5,2,3]; it should be [6,2,3]");
  block = p.Block();
  block.query = *p.query.view().Narrow(1, 0, 3);
  refuses(block, "\"query\" has 3 heads, \"key\" 2");
  block = p.Block();
  block.key = *p.key.view().Select(0, 0);
  refuses(block, "\"key\" has 2 dimensions; it should have 3");
  TestTensor other(DType::kF64, {6, 2, 3});
  block = p.Block();
  block.key = other.view();
  refuses(block, "\"key\" is of f64; it should be of f32");
  TestTensor gaps(DType::kF32, {4, 4, 3}, 1);
  EXPECT_THAT(Attend(p.Block(), {gaps.view(), p.log_sum_exp.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("statistics should be contiguous")));
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
