#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/copy.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/attention_problem.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/rounding.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

std::string KindName(BlockKind kind) {
  return kind == BlockKind::kFull     ? "full"
         : kind == BlockKind::kCausal ? "causal"
                                      : "none";
}

constexpr AttentionSizes kSizes[] = {
    {1, 1, 1, 1, 1, 1},    {1, 5, 5, 2, 2, 8},    {3, 7, 7, 6, 2, 16},
    {1, 33, 47, 4, 1, 20}, {1, 1, 300, 8, 2, 9},  {2, 300, 300, 1, 1, 5},
    {1, 70, 600, 2, 1, 3}, {2, 270, 31, 2, 1, 7}, {4, 1, 9, 2, 1, 4}};

// Windows of some width, and documents of random lengths; some queries see no
// key, and some numbers are out of range on both sides.
std::vector<int64_t> RandomFirstKeys(const AttentionSizes& s,
                                     std::mt19937_64& random) {
  std::vector<int64_t> first_keys;
  for (int64_t sequence = 0; sequence < s.sequences; ++sequence) {
    const bool is_window = random() % 2 == 0;
    const auto width = static_cast<int64_t>(random() % (s.keys + 2));
    int64_t first = is_window ? s.keys - s.queries - width
                              : -static_cast<int64_t>(random() % 3);
    for (int64_t q = 0; q < s.queries; ++q) {
      if (is_window) {
        ++first;
      } else if (random() % 20 == 0) {
        first += static_cast<int64_t>(random() % (s.keys / 2 + 2));
      }
      first_keys.push_back(first);
    }
  }
  return first_keys;
}

// The results of a whole block, in wider rows that contain NaNs before.
struct WholeResults {
  explicit WholeResults(const AttentionProblem& p)
      : output(p.query.dtype(), p.query.shape(), 8),
        log_sum_exp(p.log_sum_exp.dtype(), p.log_sum_exp.shape()),
        query_gradient(p.query.dtype(), p.query.shape(), 16),
        key_gradient(p.query.dtype(), p.key.shape(), 24),
        value_gradient(p.query.dtype(), p.key.shape(), 8) {
    for (TestTensor* x : All()) {
      x->Set(std::vector<double>(x->size(), std::nan("")));
    }
  }

  std::vector<TestTensor*> All() {
    return {&output, &log_sum_exp, &query_gradient, &key_gradient,
            &value_gradient};
  }

  void Run(Ops& ops, const AttentionProblem& p) {
    AttentionBlock block = p.Block();
    block.is_whole = true;
    TESSERA_ASSERT_OK(
        ops.Run(op::Attend{block, {output.view(), log_sum_exp.view()}}));
    TESSERA_ASSERT_OK(
        ops.Run(op::AttendGradient{block,
                                   {.output_gradient = p.output_gradient.view(),
                                    .output = output.view(),
                                    .log_sum_exp = log_sum_exp.view(),
                                    .delta = std::nullopt,
                                    .query_gradient = query_gradient.view(),
                                    .key_gradient = key_gradient.view(),
                                    .value_gradient = value_gradient.view()}}));
  }

  TestTensor output, log_sum_exp, query_gradient, key_gradient, value_gradient;
};

// Problems of every type, kind and size.
void ExpectAllAreReference(Ops& ops, Arithmetic arithmetic, uint64_t seed,
                           bool hides_keys) {
  std::mt19937_64 random(seed);
  for (const DType dtype : kComputedTypes) {
    for (const AttentionSizes& s : kSizes) {
      for (const BlockKind kind :
           {BlockKind::kFull, BlockKind::kCausal, BlockKind::kNone}) {
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << s << " " << KindName(kind));
        AttentionProblem p(dtype, s, random);
        p.kind = kind;
        if (hides_keys) p.first_keys = RandomFirstKeys(s, random);
        ExpectAttentionIsReference(ops, p, arithmetic);
      }
    }
  }
}

TEST_P(OpsConformanceTest, AttentionIsTheTextbooksForEveryTypeAndManySizes) {
  ExpectAllAreReference(ops(), arithmetic(), 1, /*hides_keys=*/false);
}

TEST_P(OpsConformanceTest, AttentionHidesKeysBeforeTheFirst) {
  ExpectAllAreReference(ops(), arithmetic(), 11, /*hides_keys=*/true);
}

TEST_P(OpsConformanceTest, WholeAttentionIsAttentionRoundedOnce) {
  std::mt19937_64 random(13);
  for (const DType dtype : kComputedTypes) {
    for (const AttentionSizes& s : kSizes) {
      for (const BlockKind kind : {BlockKind::kFull, BlockKind::kCausal}) {
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << s << " " << KindName(kind));
        AttentionProblem p(dtype, s, random);
        p.kind = kind;
        if (random() % 2 == 0) p.first_keys = RandomFirstKeys(s, random);
        WholeResults whole(p);
        whole.Run(ops(), p);
        // Merged into a state, whose output is rounded before the backward.
        TESSERA_ASSERT_OK(ops().Run(op::Attend{p.Block(), p.State()}));
        ExpectClose(whole.output, p.output.values(), 2);
        ExpectClose(whole.log_sum_exp, p.log_sum_exp.values());
        p.output.Set(whole.output.values());
        TESSERA_ASSERT_OK(ops().Run(op::RowDots{
            p.output.view(), p.output_gradient.view(), p.delta.view()}));
        TESSERA_ASSERT_OK(
            ops().Run(op::AttendGradient{p.Block(), p.Gradients()}));
        ExpectClose(whole.query_gradient, p.query_gradient.values(), 2);
        ExpectClose(whole.key_gradient, p.key_gradient.values(), 2);
        ExpectClose(whole.value_gradient, p.value_gradient.values(), 2);
        for (TestTensor* x : whole.All()) EXPECT_TRUE(x->GapsAreIntact());
      }
    }
  }
}

TEST_P(OpsConformanceTest, WholeAttentionOfNothingIsZero) {
  std::mt19937_64 random(14);
  for (const AttentionSizes& sizes :
       {AttentionSizes{2, 3, 0, 2, 1, 4}, AttentionSizes{2, 0, 3, 2, 1, 4},
        AttentionSizes{0, 3, 3, 2, 1, 4}}) {
    AttentionProblem p(DType::kBF16, sizes, random);
    WholeResults whole(p);
    whole.Run(ops(), p);
    for (TestTensor* x : whole.All()) {
      const double nothing = x == &whole.log_sum_exp ? kNothing : 0;
      EXPECT_EQ(x->values(), std::vector<double>(x->size(), nothing));
    }
  }
}

TEST_P(OpsConformanceTest, WholeAttentionRejectsDeltaAndStatistics) {
  std::mt19937_64 random(15);
  AttentionProblem p(DType::kBF16, {1, 3, 3, 2, 1, 4}, random);
  AttentionBlock block = p.Block();
  block.is_whole = true;
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(ops().Run(op::Attend{block, p.State()}),
              refused("Attend: \"output\" is of f32; it should be of bf16"));
  EXPECT_THAT(ops().Run(op::AttendGradient{block, p.Gradients()}),
              refused("\"delta\" should be given unless the block is whole."));
  block.kind = BlockKind::kNone;
  EXPECT_THAT(ops().Run(op::Attend{block, p.State()}),
              refused("is whole; it should be of another kind."));
  AttentionGradients gradients = p.Gradients();
  gradients.delta.reset();
  EXPECT_THAT(ops().Run(op::AttendGradient{p.Block(), gradients}),
              refused("\"delta\" should be given unless the block is whole."));
}

// Rows of a larger table.
TEST_P(OpsConformanceTest, AttentionTakesFirstKeysWithGaps) {
  std::mt19937_64 random(12);
  AttentionProblem p(DType::kF64, {2, 9, 13, 4, 2, 6}, random), same = p;
  p.first_keys = RandomFirstKeys(p.sizes, random);
  std::vector<int64_t> table(2 * 20, -7);
  for (int64_t i = 0; i < 18; ++i) {
    table[i / 9 * 20 + 5 + i % 9] = p.first_keys[i];
  }
  TESSERA_ASSERT_OK(ops().Run(op::Attend{p.Block(), p.State()}));
  AttentionBlock block = same.Block();
  block.first_keys =
      *ConstTensorView::Of(std::span<const int64_t>(table), {{2, 20}})
           ->Narrow(1, 5, 9);
  TESSERA_ASSERT_OK(ops().Run(op::Attend{block, same.State()}));
  EXPECT_EQ(same.output.bytes(), p.output.bytes());
  EXPECT_EQ(same.log_sum_exp.bytes(), p.log_sum_exp.bytes());
}

TEST_P(OpsConformanceTest, AttentionTakesStatesAndGradientsWithGaps) {
  std::mt19937_64 random(2);
  for (const DType dtype : kComputedTypes) {
    for (const int64_t d : {6, 8}) {
      AttentionProblem p(dtype, {2, 9, 13, 4, 2, d}, random, /*state_gap=*/3);
      ExpectAttentionIsReference(ops(), p, arithmetic());
    }
  }
}

// Tensors of [queries, sequences, heads, d], seen as the op wants them.
TEST_P(OpsConformanceTest, AttentionTakesSequencesAnyDistanceApart) {
  std::mt19937_64 random(3);
  AttentionProblem p(DType::kF64, {3, 10, 10, 4, 2, 5}, random);
  TESSERA_ASSERT_OK(ops().Run(op::Attend{p.Block(), p.State()}));
  TESSERA_ASSERT_OK(ops().Run(
      op::RowDots{p.output.view(), p.output_gradient.view(), p.delta.view()}));
  TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{p.Block(), p.Gradients()}));

  const auto turned = [](const TestTensor& x) {
    Dims shape = x.shape();
    std::swap(shape[0], shape[1]);
    TestTensor y(x.dtype(), shape, 1);
    EXPECT_THAT(Copy(x.view(), *y.view().Transpose(0, 1)), IsOk());
    return y;
  };
  const auto as_block = [](const TestTensor& x) {
    return *x.view().Transpose(0, 1);
  };
  TestTensor query = turned(p.query), key = turned(p.key),
             value = turned(p.value), gradient = turned(p.output_gradient);
  AttentionProblem zeros(DType::kF64, p.sizes, random);
  TestTensor output = turned(zeros.output),
             log_sum_exp = turned(zeros.log_sum_exp),
             delta = turned(zeros.delta),
             query_gradient = turned(zeros.query_gradient),
             key_gradient = turned(zeros.key_gradient),
             value_gradient = turned(zeros.value_gradient);
  const AttentionBlock block = {as_block(query), as_block(key), as_block(value),
                                p.kind, p.scale};
  TESSERA_ASSERT_OK(
      ops().Run(op::Attend{block, {as_block(output), as_block(log_sum_exp)}}));
  TESSERA_ASSERT_OK(ops().Run(
      op::RowDots{as_block(output), as_block(gradient), as_block(delta)}));
  TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{
      block,
      {as_block(gradient), as_block(output), as_block(log_sum_exp),
       as_block(delta), as_block(query_gradient), as_block(key_gradient),
       as_block(value_gradient)}}));
  ExpectClose(output, turned(p.output).values());
  ExpectClose(log_sum_exp, turned(p.log_sum_exp).values());
  ExpectClose(query_gradient, turned(p.query_gradient).values());
  ExpectClose(key_gradient, turned(p.key_gradient).values(), 4);
  ExpectClose(value_gradient, turned(p.value_gradient).values(), 4);
}

// The parts of a causal problem: each chunk of queries sees earlier chunks of
// keys in full, its own causally and no later one.
TEST_P(OpsConformanceTest, AttentionMergedOverChunksIsUnsplit) {
  std::mt19937_64 random(4);
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{0, 300}, std::vector<int64_t>{0, 150, 300},
          std::vector<int64_t>{0, 1, 40, 296, 296, 300}}) {
      AttentionProblem p(dtype, {2, 300, 300, 2, 1, 6}, random, 1);
      const AttentionReference reference(p, arithmetic());
      struct Pair {
        size_t queries, keys;
      };
      std::vector<Pair> order;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        for (size_t j = 0; j + 1 < cuts.size(); ++j) order.push_back({i, j});
      }
      std::shuffle(order.begin(), order.end(), random);
      const auto block = [&](const Pair& pair) {
        return p.Block(cuts[pair.queries], cuts[pair.queries + 1],
                       cuts[pair.keys], cuts[pair.keys + 1],
                       pair.keys < pair.queries    ? BlockKind::kFull
                       : pair.keys == pair.queries ? BlockKind::kCausal
                                                   : BlockKind::kNone);
      };
      for (const Pair& pair : order) {
        TESSERA_ASSERT_OK(ops().Run(op::Attend{
            block(pair), p.State(cuts[pair.queries], cuts[pair.queries + 1])}));
      }
      ExpectClose(p.output, reference.output);
      ExpectClose(p.log_sum_exp, reference.log_sum_exp);
      p.delta.Set(reference.delta);
      for (const Pair& pair : order) {
        TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{
            block(pair), p.Gradients(cuts[pair.queries], cuts[pair.queries + 1],
                                     cuts[pair.keys], cuts[pair.keys + 1])}));
      }
      ExpectClose(p.query_gradient, reference.query_gradient, 2);
      ExpectClose(p.key_gradient, reference.key_gradient, 8);
      ExpectClose(p.value_gradient, reference.value_gradient, 8);
    }
  }
}

TEST_P(OpsConformanceTest, AttentionGradientsAreFiniteDifferences) {
  std::mt19937_64 random(5);
  AttentionProblem p(DType::kF64, {2, 3, 4, 2, 1, 2}, random);
  const auto f = [&] {
    p.Reset();
    EXPECT_THAT(ops().Run(op::Attend{p.Block(), p.State()}), IsOk());
    return Dot(p.output_gradient, p.output);
  };
  f();
  TESSERA_ASSERT_OK(ops().Run(
      op::RowDots{p.output.view(), p.output_gradient.view(), p.delta.view()}));
  TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{p.Block(), p.Gradients()}));
  for (auto [x, gradient] : {std::pair{&p.query, &p.query_gradient},
                             std::pair{&p.key, &p.key_gradient},
                             std::pair{&p.value, &p.value_gradient}}) {
    for (int64_t i = 0; i < x->size(); ++i) {
      EXPECT_NEAR(gradient->at(i), Slope(*x, i, f), 1e-8) << i;
    }
  }
}

// By head, in f64: the largest score of a pair that sees each other.
std::vector<double> MaxScoresOf(const AttentionProblem& p) {
  const AttentionSizes& s = p.sizes;
  const std::vector<double> query = p.query.values(), key = p.key.values();
  std::vector<double> largest(static_cast<size_t>(s.heads), kNothing);
  for (int64_t i = 0; i < s.sequences * s.queries * s.heads; ++i) {
    const int64_t head = i % s.heads, q = i / s.heads % s.queries;
    const int64_t sequence = i / s.heads / s.queries;
    for (int64_t k = 0; k < s.keys; ++k) {
      if (!p.Sees(sequence, q, k)) continue;
      const int64_t kv = ((sequence * s.keys + k) * s.kv_heads +
                          head / (s.heads / s.kv_heads)) *
                         s.d;
      double dot = 0;
      for (int64_t j = 0; j < s.d; ++j) dot += query[i * s.d + j] * key[kv + j];
      largest[head] = std::max(largest[head], dot * p.scale);
    }
  }
  return largest;
}

TEST_P(OpsConformanceTest, MaxScoresAreTheirFormula) {
  std::mt19937_64 random(31);
  for (const DType dtype : kComputedTypes) {
    for (const AttentionSizes& s : kSizes) {
      for (const BlockKind kind :
           {BlockKind::kFull, BlockKind::kCausal, BlockKind::kNone}) {
        for (const bool hides_keys : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << dtype << " " << s << " " << KindName(kind)
                       << " hides_keys=" << hides_keys);
          AttentionProblem p(dtype, s, random);
          p.kind = kind;
          if (hides_keys) p.first_keys = RandomFirstKeys(s, random);
          TestTensor scores(StatisticsFor(dtype), {s.heads});
          scores.Set(std::vector<double>(s.heads, kNothing));
          TESSERA_ASSERT_OK(ops().Run(op::MaxScores{p.Block(), scores.view()}));
          ExpectClose(scores, MaxScoresOf(p));
          // Larger scores of an earlier block remain.
          scores.Set(std::vector<double>(s.heads, 1e6));
          TESSERA_ASSERT_OK(ops().Run(op::MaxScores{p.Block(), scores.view()}));
          ExpectClose(scores, std::vector<double>(s.heads, 1e6));
        }
      }
    }
  }
}

TEST_P(OpsConformanceTest, MaxScoresOfChunksAreUnsplitAndIgnoreNan) {
  std::mt19937_64 random(32);
  AttentionProblem p(DType::kF64, {2, 100, 100, 4, 2, 6}, random);
  TestTensor scores(DType::kF64, {4}), whole(DType::kF64, {4});
  scores.Set(std::vector<double>(4, kNothing));
  for (const auto& [first, last, begin, end, kind] :
       {std::tuple{0, 33, 0, 33, BlockKind::kCausal},
        std::tuple{33, 100, 0, 33, BlockKind::kFull},
        std::tuple{33, 100, 33, 100, BlockKind::kCausal}}) {
    TESSERA_ASSERT_OK(ops().Run(
        op::MaxScores{p.Block(first, last, begin, end, kind), scores.view()}));
  }
  ExpectClose(scores, MaxScoresOf(p));
  p.query.set(0, std::nan(""));
  whole.Set(std::vector<double>(4, kNothing));
  TESSERA_ASSERT_OK(ops().Run(op::MaxScores{p.Block(), whole.view()}));
  for (int64_t head = 0; head < 4; ++head) EXPECT_GT(whole.at(head), 0);
}

TEST_P(OpsConformanceTest, MaxScoresRejectsCapsAndOtherShapes) {
  std::mt19937_64 random(33);
  AttentionProblem p(DType::kF32, {1, 3, 4, 2, 1, 2}, random);
  TestTensor scores(DType::kF32, {2}), other(DType::kF32, {3});
  EXPECT_THAT(ops().Run(op::MaxScores{p.Block(), other.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("MaxScores: \"max_scores\" has shape [3]; it "
                                 "should be [2].")));
  p.cap = 5;
  EXPECT_THAT(ops().Run(op::MaxScores{p.Block(), scores.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cap is 5; it should be 0.")));
  p.cap = 0;
  p.scale = 0;
  EXPECT_THAT(ops().Run(op::MaxScores{p.Block(), scores.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("scale is 0; it should be positive.")));
}

TEST_P(OpsConformanceTest, SinksAreTheirFormula) {
  std::mt19937_64 random(21);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape :
         {Dims{1, 1}, Dims{5, 7}, Dims{900, 33}, Dims{0, 3}, Dims{4, 0}}) {
      const DType statistics = StatisticsFor(dtype);
      TestTensor sinks(dtype, {shape[1]}), sums(statistics, shape),
          factors(statistics, shape), delta(statistics, shape);
      sinks.Randomise(random, 4);
      sums.Randomise(random, 40);
      delta.Randomise(random);
      // Queries that see no key.
      for (int64_t i = 0; i < sums.size(); i += 11) sums.set(i, kNothing);
      std::vector<double> all, shares, gradients;
      for (int64_t i = 0; i < sums.size(); ++i) {
        const double sink = std::exp(sinks.at(i % shape[1]));
        const double keys = std::exp(sums.at(i));
        all.push_back(std::log(keys + sink));
        shares.push_back(keys / (keys + sink));
        gradients.push_back(-sink / (keys + sink) * delta.at(i));
      }
      TESSERA_ASSERT_OK(
          ops().Run(op::AddSinks{sinks.view(), sums.view(), factors.view()}));
      ExpectClose(sums, all);
      ExpectClose(factors, shares);
      TESSERA_ASSERT_OK(ops().Run(
          op::SinkGradients{sinks.view(), sums.view(), delta.view()}));
      ExpectClose(delta, gradients, 5);
    }
  }
}

// Sinks far below and far above the scores of keys.
TEST_P(OpsConformanceTest, FarSinksChangeNothingOrTakeAll) {
  TestTensor sinks(DType::kF32, {3}), sums(DType::kF32, {2, 3}),
      factors(DType::kF32, {2, 3}), delta(DType::kF32, {2, 3});
  sinks.Set({-1000, 0, 1000});
  sums.Set({3, 3, 3, 800, 800, 800});
  delta.Set({2, 2, 2, 2, 2, 2});
  TESSERA_ASSERT_OK(
      ops().Run(op::AddSinks{sinks.view(), sums.view(), factors.view()}));
  ExpectClose(sums, {3, std::log(1 + std::exp(3.0)), 1000, 800, 800, 1000});
  ExpectClose(factors, {1, 1 / (1 + std::exp(-3.0)), 0, 1, 1, 0});
  TESSERA_ASSERT_OK(
      ops().Run(op::SinkGradients{sinks.view(), sums.view(), delta.view()}));
  ExpectClose(delta, {0, -2 / (1 + std::exp(3.0)), -2, 0, 0, -2});
  TestTensor other(DType::kF32, {2, 4});
  EXPECT_THAT(
      ops().Run(op::AddSinks{sinks.view(), sums.view(), other.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("AddSinks: \"factors\" has shape [2,4]; it should be "
                         "[2,3].")));
  EXPECT_THAT(
      ops().Run(op::SinkGradients{sinks.view(), sinks.view(), sums.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("SinkGradients: \"log_sum_exp\" has shape")));
}

TEST_P(OpsConformanceTest, GradientsWithSinksAreFiniteDifferences) {
  std::mt19937_64 random(22);
  AttentionProblem p(DType::kF64, {2, 3, 4, 2, 1, 2}, random);
  const int64_t rows = 2 * 3, heads = 2, d = 2;
  TestTensor sinks(DType::kF64, {heads}), factors(DType::kF64, {rows, heads}),
      gradient(DType::kF64, {heads});
  sinks.Randomise(random);
  const auto flat = [&](const TestTensor& x, Dims shape) {
    return *x.view().Reshape(shape);
  };
  const auto f = [&] {
    p.Reset();
    EXPECT_THAT(ops().Run(op::Attend{p.Block(), p.State()}), IsOk());
    EXPECT_THAT(
        ops().Run(op::AddSinks{sinks.view(), flat(p.log_sum_exp, {rows, heads}),
                               factors.view()}),
        IsOk());
    const TensorView output = flat(p.output, {rows * heads, d});
    EXPECT_THAT(
        ops().Run(op::ScaleRows{flat(factors, {rows * heads}), output, output}),
        IsOk());
    return Dot(p.output_gradient, p.output);
  };
  f();
  TESSERA_ASSERT_OK(ops().Run(
      op::RowDots{p.output.view(), p.output_gradient.view(), p.delta.view()}));
  TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{p.Block(), p.Gradients()}));
  const TensorView delta = flat(p.delta, {rows, heads});
  TESSERA_ASSERT_OK(ops().Run(op::SinkGradients{
      sinks.view(), flat(p.log_sum_exp, {rows, heads}), delta}));
  TESSERA_ASSERT_OK(ops().Run(op::SumRows{delta, gradient.view()}));
  for (auto [x, expected] :
       {std::pair{&p.query, &p.query_gradient},
        std::pair{&p.key, &p.key_gradient},
        std::pair{&p.value, &p.value_gradient}, std::pair{&sinks, &gradient}}) {
    for (int64_t i = 0; i < x->size(); ++i) {
      EXPECT_NEAR(expected->at(i), Slope(*x, i, f), 1e-8) << i;
    }
  }
}

TEST_P(OpsConformanceTest, AttentionAddsToGradients) {
  std::mt19937_64 random(6);
  AttentionProblem p(DType::kF64, {2, 4, 4, 2, 1, 3}, random);
  TESSERA_ASSERT_OK(ops().Run(op::Attend{p.Block(), p.State()}));
  TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{p.Block(), p.Gradients()}));
  std::vector<double> twice = p.key_gradient.values();
  for (double& x : twice) x *= 2;
  TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{p.Block(), p.Gradients()}));
  ExpectClose(p.key_gradient, twice);
}

TEST_P(OpsConformanceTest, AttentionLeavesAQueryThatSeesNothingAsItWas) {
  std::mt19937_64 random(7);
  for (const DType dtype : kComputedTypes) {
    // The first two of four queries come before the first of two keys.
    AttentionProblem p(dtype, {2, 4, 2, 2, 1, 4}, random);
    TESSERA_ASSERT_OK(ops().Run(op::Attend{p.Block(), p.State()}));
    for (int64_t row = 0; row < 16; ++row) {
      const bool sees = row % 8 >= 4;
      EXPECT_EQ(p.log_sum_exp.at(row) != kNothing, sees);
      for (int64_t j = 0; j < 4; ++j) {
        EXPECT_EQ(p.output.at(row * 4 + j) != 0, sees);
      }
    }
    TESSERA_ASSERT_OK(ops().Run(op::AttendGradient{p.Block(), p.Gradients()}));
    for (int64_t j = 0; j < 16; ++j) EXPECT_EQ(p.query_gradient.at(j), 0);

    // A later block without visible keys changes no bit.
    const auto before = p.output.bytes();
    p.kind = BlockKind::kNone;
    TESSERA_ASSERT_OK(ops().Run(op::Attend{p.Block(), p.State()}));
    EXPECT_EQ(p.output.bytes(), before);
  }
}

// Caps that bend most scores, and one that bends few.
TEST_P(OpsConformanceTest, AttentionCapsScores) {
  std::mt19937_64 random(11);
  for (const DType dtype : kComputedTypes) {
    for (const double cap : {0.25, 20.0}) {
      for (const BlockKind kind : {BlockKind::kFull, BlockKind::kCausal}) {
        AttentionProblem p(dtype, {2, 70, 90, 4, 2, 16}, random, 3);
        p.kind = kind;
        p.cap = cap;
        for (int64_t i = 0; i < 2 * 70; ++i) {
          p.first_keys.push_back(i % 70 / 3);
        }
        SCOPED_TRACE(testing::Message() << dtype << " " << cap);
        ExpectAttentionIsReference(ops(), p, arithmetic());
      }
    }
  }
}

TEST_P(OpsConformanceTest, AttentionSurvivesScoresThatWouldOverflow) {
  std::mt19937_64 random(8);
  AttentionProblem p(DType::kF32, {1, 40, 40, 2, 2, 8}, random);
  p.scale = 300;
  const AttentionReference reference(p, arithmetic());
  TESSERA_ASSERT_OK(ops().Run(op::Attend{p.Block(), p.State()}));
  for (const double x : p.output.values()) EXPECT_TRUE(std::isfinite(x));
  ExpectClose(p.log_sum_exp, reference.log_sum_exp, 1000);
}

TEST_P(OpsConformanceTest, AttentionTakesNothingAtAll) {
  std::mt19937_64 random(9);
  for (const AttentionSizes& sizes :
       {AttentionSizes{1, 0, 3, 2, 1, 4}, AttentionSizes{1, 3, 0, 2, 1, 4},
        AttentionSizes{1, 3, 3, 0, 0, 4}, AttentionSizes{1, 3, 3, 2, 1, 0},
        AttentionSizes{0, 3, 3, 2, 1, 4}, AttentionSizes{0, 0, 0, 0, 0, 0}}) {
    AttentionProblem p(DType::kF32, sizes, random);
    EXPECT_THAT(ops().Run(op::Attend{p.Block(), p.State()}), IsOk());
    EXPECT_THAT(ops().Run(op::AttendGradient{p.Block(), p.Gradients()}),
                IsOk());
    if (sizes.keys == 0 && sizes.queries > 0) {
      EXPECT_EQ(p.log_sum_exp.at(0), kNothing);
    }
  }
}

TEST_P(OpsConformanceTest, AttentionRefusesWhatDoesNotFitAndWritesNothing) {
  std::mt19937_64 random(10);
  AttentionProblem p(DType::kF32, {2, 4, 6, 4, 2, 3}, random);
  const auto before = p.output.bytes();
  const auto refuses = [&](const AttentionBlock& block, const char* text) {
    EXPECT_THAT(ops().Run(op::Attend{block, p.State()}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    EXPECT_THAT(ops().Run(op::AttendGradient{block, p.Gradients()}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    EXPECT_EQ(p.output.bytes(), before);
  };
  AttentionBlock block = p.Block();
  block.value = *p.value.view().Narrow(1, 0, 5);
  refuses(block, "\"value\" has shape [2,5,2,3]; it should be [2,6,2,3]");
  block = p.Block();
  block.key = *p.key.view().Narrow(0, 0, 1);
  refuses(block, "\"key\" has shape [1,6,2,3]; it should be [2,6,2,3]");
  block = p.Block();
  block.query = *p.query.view().Narrow(2, 0, 3);
  refuses(block, "\"query\" has 3 heads, \"key\" 2");
  block = p.Block();
  block.key = *p.key.view().Select(0, 0);
  refuses(block, "\"key\" has 3 dimensions; it should have 4");
  block = p.Block();
  block.query = *p.query.view().Select(0, 0);
  refuses(block, "\"query\" has shape [4,4,3]; it should have 4 dimensions.");
  TestTensor other(DType::kF64, {2, 6, 2, 3});
  block = p.Block();
  block.key = other.view();
  refuses(block, "\"key\" is of f64; it should be of f32");
  block = p.Block();
  const std::vector<int64_t> list(8);
  block.first_keys = ListOf(list);
  refuses(block, "\"first_keys\" has shape [8]; it should be [2,4]");
  const TestTensor narrow(DType::kI32, {2, 4}), wide(DType::kI64, {2, 4});
  block.first_keys = narrow.view();
  refuses(block, "\"first_keys\" is of i32; it should be of i64");
  block.first_keys = wide.view();
  block.scale = 0;
  refuses(block, "scale is 0; with \"first_keys\" it should be positive");
  block = p.Block();
  block.cap = -1;
  refuses(block, "cap is -1; it should be positive, or 0 for none.");
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(
      ops().Run(op::Attend{
          p.Block(), {*p.output.view().Narrow(1, 0, 3), p.log_sum_exp.view()}}),
      refused("Attend: \"output\" has shape [2,3,4,3]"));
  AttentionGradients gradients = p.Gradients();
  gradients.output = *p.output.view().Narrow(1, 0, 3);
  EXPECT_THAT(ops().Run(op::AttendGradient{p.Block(), gradients}),
              refused("AttendGradient: \"output\" has shape [2,3,4,3]"));
  gradients = p.Gradients();
  gradients.delta = p.output.view();
  EXPECT_THAT(ops().Run(op::AttendGradient{p.Block(), gradients}),
              refused("AttendGradient: \"delta\" has shape [2,4,4,3]"));
}

}  // namespace
}  // namespace tessera::tensor_parallel
