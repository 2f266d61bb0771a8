#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/ops_cuda/attention.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

struct Sizes {
  int64_t sequences, queries, keys, heads, kv_heads, d;
};
constexpr Sizes kSizes[] = {
    {1, 1, 1, 1, 1, 1},    {2, 5, 5, 4, 2, 8},    {1, 67, 67, 2, 1, 20},
    {1, 9, 130, 3, 3, 33}, {1, 70, 10, 2, 1, 16}, {2, 3, 7, 2, 2, 70},
    {1, 5, 66, 2, 1, 150}, {0, 5, 5, 1, 1, 4},    {1, 0, 5, 1, 1, 4},
    {1, 5, 0, 1, 1, 4},    {1, 4, 4, 2, 1, 0},    {1, 65, 65, 1, 1, 256},
};

struct Problem {
  Problem(DType dtype, const Sizes& s, std::mt19937_64& random, int64_t gap)
      : sizes(s),
        query(dtype, {s.sequences, s.queries, s.heads, s.d}, gap),
        key(dtype, {s.sequences, s.keys, s.kv_heads, s.d}, gap),
        value(dtype, {s.sequences, s.keys, s.kv_heads, s.d}, gap),
        output(StatisticsFor(dtype), query.shape(), gap),
        log_sum_exp(StatisticsFor(dtype), {s.sequences, s.queries, s.heads},
                    gap),
        output_gradient(dtype, query.shape(), gap),
        delta(StatisticsFor(dtype), log_sum_exp.shape(), gap),
        query_gradient(StatisticsFor(dtype), query.shape(), gap),
        key_gradient(StatisticsFor(dtype), key.shape(), gap),
        value_gradient(StatisticsFor(dtype), key.shape(), gap),
        scale(1 / std::sqrt(static_cast<double>(std::max<int64_t>(s.d, 1)))) {
    for (TestTensor* x : {&query, &key, &value, &output_gradient}) {
      x->Randomise(random);
    }
    log_sum_exp.Set(std::vector<double>(log_sum_exp.size(), kNothing));
  }

  AttentionBlock Block() const {
    return {query.view(), key.view(), value.view(), kind, scale};
  }
  AttentionState State() const { return {output.view(), log_sum_exp.view()}; }
  AttentionGradients Gradients() const {
    return {output_gradient.view(), output.view(),         log_sum_exp.view(),
            delta.view(),           query_gradient.view(), key_gradient.view(),
            value_gradient.view()};
  }
  bool Sees(int64_t q, int64_t k) const {
    if (kind == BlockKind::kCausal) return k <= q + sizes.keys - sizes.queries;
    return kind == BlockKind::kFull;
  }

  Sizes sizes;
  TestTensor query, key, value, output, log_sum_exp, output_gradient, delta;
  TestTensor query_gradient, key_gradient, value_gradient;
  BlockKind kind = BlockKind::kCausal;
  double scale;
};

// The textbook formulas, in f64; gradients are added to what was there.
struct Reference {
  explicit Reference(const Problem& p)
      : output(p.output.size(), 0),
        log_sum_exp(p.log_sum_exp.size(), kNothing),
        delta(p.delta.size(), 0),
        query_gradient(p.query_gradient.values()),
        key_gradient(p.key_gradient.values()),
        value_gradient(p.value_gradient.values()),
        query(p.query.values()),
        key(p.key.values()),
        value(p.value.values()),
        gradient(p.output_gradient.values()) {
    for (int64_t i = 0; i < p.log_sum_exp.size(); ++i) Row(p, i);
  }

  std::vector<double> output, log_sum_exp, delta;
  std::vector<double> query_gradient, key_gradient, value_gradient;

 private:
  void Row(const Problem& p, int64_t i) {
    const auto& [sequences, queries, keys, heads, kv_heads, d] = p.sizes;
    const int64_t head = i % heads / (heads / kv_heads);
    const int64_t token = i / heads % queries, sequence = i / heads / queries;
    const auto row_of = [&](int64_t k) {
      return ((sequence * keys + k) * kv_heads + head) * d;
    };
    std::vector<double> scores(keys, kNothing);
    double sum = 0;
    for (int64_t k = 0; k < keys; ++k) {
      if (!p.Sees(token, k)) continue;
      scores[k] = 0;
      for (int64_t j = 0; j < d; ++j) {
        scores[k] += p.scale * query[i * d + j] * key[row_of(k) + j];
      }
      sum += std::exp(scores[k]);
    }
    if (sum == 0) return;
    log_sum_exp[i] = std::log(sum);
    for (int64_t k = 0; k < keys; ++k) {
      for (int64_t j = 0; j < d; ++j) {
        output[i * d + j] += std::exp(scores[k]) / sum * value[row_of(k) + j];
      }
    }
    for (int64_t j = 0; j < d; ++j) {
      delta[i] += output[i * d + j] * gradient[i * d + j];
    }
    for (int64_t k = 0; k < keys; ++k) {
      const double share = std::exp(scores[k]) / sum;
      double product = -delta[i];
      for (int64_t j = 0; j < d; ++j) {
        product += gradient[i * d + j] * value[row_of(k) + j];
      }
      const double score_gradient = p.scale * share * product;
      for (int64_t j = 0; j < d; ++j) {
        value_gradient[row_of(k) + j] += share * gradient[i * d + j];
        key_gradient[row_of(k) + j] += score_gradient * query[i * d + j];
        query_gradient[i * d + j] += score_gradient * key[row_of(k) + j];
      }
    }
  }

  std::vector<double> query, key, value, gradient;
};

void ExpectStatistics(const TestTensor& actual,
                      const std::vector<double>& expected) {
  for (int64_t i = 0; i < actual.size(); ++i) {
    if (expected[i] == kNothing) {
      EXPECT_EQ(actual.at(i), kNothing);
      continue;
    }
    const double tolerance = actual.dtype() == DType::kF64 ? 1e-12 : 1e-5;
    EXPECT_NEAR(actual.at(i), expected[i],
                tolerance * std::max(1.0, std::abs(expected[i])));
  }
}

template <typename Functor>
void ForProblems(const Functor& functor) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Sizes& s : kSizes) {
      for (const BlockKind kind : {BlockKind::kFull, BlockKind::kCausal}) {
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << s.queries << " x " << s.keys << " x "
                     << s.d << ", kind " << static_cast<int>(kind));
        Problem problem(dtype, s, random, kind == BlockKind::kFull ? 3 : 0);
        problem.kind = kind;
        functor(problem, random);
      }
    }
  }
}

TEST(AttentionKernelsTest, AttendIsTheFormula) {
  ForProblems([](Problem& p, std::mt19937_64&) {
    const Reference expected(p);
    TESSERA_ASSERT_OK(Attend(nullptr, p.Block(), p.State()));
    ExpectClose(p.output, expected.output);
    ExpectStatistics(p.log_sum_exp, expected.log_sum_exp);
    EXPECT_TRUE(p.output.GapsAreIntact());
    EXPECT_TRUE(p.log_sum_exp.GapsAreIntact());
  });
}

TEST(AttentionKernelsTest, AttendGradientIsTheFormulaAndAdds) {
  ForProblems([](Problem& p, std::mt19937_64& random) {
    for (TestTensor* x :
         {&p.query_gradient, &p.key_gradient, &p.value_gradient}) {
      x->Randomise(random);
    }
    const Reference expected(p);
    p.output.Set(expected.output);
    p.log_sum_exp.Set(expected.log_sum_exp);
    p.delta.Set(expected.delta);
    TESSERA_ASSERT_OK(AttendGradient(nullptr, p.Block(), p.Gradients()));
    ExpectClose(p.query_gradient, expected.query_gradient, 8);
    ExpectClose(p.key_gradient, expected.key_gradient, 8);
    ExpectClose(p.value_gradient, expected.value_gradient, 8);
    EXPECT_TRUE(p.query_gradient.GapsAreIntact());
    EXPECT_TRUE(p.key_gradient.GapsAreIntact());
    EXPECT_TRUE(p.value_gradient.GapsAreIntact());
  });
}

TEST(AttentionKernelsTest, BlocksOfKeysMergeIntoAttentionOverAll) {
  std::mt19937_64 random(2);
  for (const DType dtype : kComputedTypes) {
    Problem p(dtype, {2, 6, 90, 4, 2, 24}, random, 2);
    p.kind = BlockKind::kFull;
    const Reference expected(p);
    for (const auto& [begin, size] :
         {std::pair<int64_t, int64_t>{0, 13}, {13, 70}, {83, 7}}) {
      AttentionBlock block = p.Block();
      block.key = *block.key.Narrow(1, begin, size);
      block.value = *block.value.Narrow(1, begin, size);
      TESSERA_ASSERT_OK(Attend(nullptr, block, p.State()));
    }
    ExpectClose(p.output, expected.output);
    ExpectStatistics(p.log_sum_exp, expected.log_sum_exp);
  }
}

TEST(AttentionKernelsTest, NoneDoesNothing) {
  std::mt19937_64 random(3);
  Problem p(DType::kF32, {1, 3, 3, 1, 1, 4}, random, 0);
  p.kind = BlockKind::kNone;
  TESSERA_ASSERT_OK(Attend(nullptr, p.Block(), p.State()));
  TESSERA_ASSERT_OK(AttendGradient(nullptr, p.Block(), p.Gradients()));
  EXPECT_EQ(p.output.values(), std::vector<double>(12, 0));
  EXPECT_EQ(p.log_sum_exp.values(), std::vector<double>(3, kNothing));
  EXPECT_EQ(p.query_gradient.values(), std::vector<double>(12, 0));
}

}  // namespace
}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
