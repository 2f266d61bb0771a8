#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

constexpr double kLowest = -std::numeric_limits<double>::infinity();

struct Problem {
  Problem(DType dtype, int64_t rows, IndexRange held, std::mt19937_64& random)
      : held(held),
        logits(dtype, {rows, held.size()}, 3),
        largest(StatisticsFor(dtype), {rows}),
        sum(StatisticsFor(dtype), {rows}),
        picked(StatisticsFor(dtype), {rows}) {
    logits.Randomise(random, 4);
    for (int64_t i = 0; i < rows; ++i) {
      targets.push_back(held.begin - 1 +
                        static_cast<int64_t>(random() % (held.size() + 2)));
      scales.push_back(i % 4 == 3 ? 0 : 0.25 * static_cast<double>(i + 1));
    }
  }
  absl::Status Forward(Ops& ops) {
    absl::Status status = ops.Run(op::RowMax{logits.view(), largest.view()});
    status.Update(
        ops.Run(op::SumExp{logits.view(), largest.view(), sum.view()}));
    status.Update(
        ops.Run(op::Pick{logits.view(), held, ListOf(targets), picked.view()}));
    return status;
  }
  absl::Status Gradient(Ops& ops) {
    return ops.Run(op::CrossEntropyGradient{largest.view(), sum.view(), held,
                                            ListOf(targets), ListOf(scales),
                                            terms, logits.view(), cap});
  }

  IndexRange held;
  TestTensor logits, largest, sum, picked;
  std::vector<int64_t> targets;
  std::vector<double> scales;
  LossTerms terms;
  double cap = 0;
};

// One pass over the logits gives what two give.
void ExpectOnePass(Ops& ops, const Problem& p) {
  TestTensor largest = p.largest, sum = p.sum;
  TESSERA_ASSERT_OK(
      ops.Run(op::MaxAndSumExp{p.logits.view(), largest.view(), sum.view()}));
  EXPECT_EQ(largest.bytes(), p.largest.bytes());
  ExpectClose(sum, p.sum.values());
}

void ExpectIsFormula(Ops& ops, Problem& p) {
  const int64_t rows = p.logits.shape()[0], n = p.held.size();
  const std::vector<double> x = p.logits.values();
  std::vector<double> largest(rows, kLowest), sum(rows, 0), picked(rows, 0);
  std::vector<double> gradient(rows * n, 0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      largest[i] = std::max(largest[i], x[i * n + j]);
    }
    for (int64_t j = 0; j < n; ++j)
      sum[i] += std::exp(x[i * n + j] - largest[i]);
    for (int64_t j = 0; j < n && p.targets[i] >= 0; ++j) {
      const bool is_target = p.targets[i] == p.held.begin + j;
      if (is_target) picked[i] = x[i * n + j];
      const double smoothing = p.terms.label_smoothing;
      const double spread =
          smoothing == 0 ? 0
                         : smoothing / static_cast<double>(p.terms.vocabulary);
      gradient[i * n + j] =
          (std::exp(x[i * n + j] - largest[i]) / sum[i] *
               (1 + 2 * p.terms.z_loss * (std::log(sum[i]) + largest[i])) -
           (is_target ? 1 - smoothing : 0) - spread) *
          p.scales[i];
    }
  }
  TESSERA_ASSERT_OK(p.Forward(ops));
  ExpectOnePass(ops, p);
  ExpectClose(p.largest, largest);
  ExpectClose(p.sum, sum);
  ExpectClose(p.picked, picked);
  TESSERA_ASSERT_OK(p.Gradient(ops));
  ExpectClose(p.logits, gradient, 2);
  EXPECT_TRUE(p.logits.GapsAreIntact());
}

TEST_P(OpsConformanceTest, CrossEntropyIsItsFormula) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const int64_t rows : {0, 1, 6}) {
      for (const IndexRange held :
           {IndexRange{0, 1}, IndexRange{5, 12}, IndexRange{100, 116},
            IndexRange{7, 140}, IndexRange{3, 3}}) {
        SCOPED_TRACE(testing::Message() << dtype << " " << rows << held);
        Problem p(dtype, rows, held, random);
        ExpectIsFormula(ops(), p);
        for (const LossTerms& terms :
             {LossTerms{.label_smoothing = 0.25, .vocabulary = held.end + 2},
              LossTerms{.z_loss = 0.125},
              LossTerms{.label_smoothing = 0.1,
              .z_loss = 1e-3,
              .vocabulary = held.end}}) {
          Problem with(dtype, rows, held, random);
          with.terms = terms;
          ExpectIsFormula(ops(), with);
        }
      }
    }
  }
}

TEST_P(OpsConformanceTest, CrossEntropyGradientIsTheFiniteDifferenceOfTheLoss) {
  std::mt19937_64 random(2);
  for (const LossTerms& terms :
       {LossTerms{}, LossTerms{.label_smoothing = 0.3, .vocabulary = 10},
        LossTerms{.z_loss = 0.2},
        LossTerms{.label_smoothing = 0.1, .z_loss = 0.01, .vocabulary = 10}}) {
    Problem p(DType::kF64, 3, {0, 10}, random);
    p.terms = terms;
    p.targets = {4, 0, 9};
    p.scales = {1, 0.5, 2};
    // By the definition of LossTerms.
    const auto loss = [&] {
      EXPECT_THAT(p.Forward(ops()), IsOk());
      double sum = 0;
      for (int64_t i = 0; i < 3; ++i) {
        const double log_sum = p.largest.at(i) + std::log(p.sum.at(i));
        double others = 0;
        for (int64_t j = 0; j < 10; ++j) {
          others += (log_sum - p.logits.at(10 * i + j)) / 10;
        }
        sum +=
            p.scales[i] *
            ((1 - terms.label_smoothing) * (log_sum - p.picked.at(i)) +
             terms.label_smoothing * others + terms.z_loss * log_sum * log_sum);
      }
      return sum;
    };
    std::vector<double> slopes;
    for (int64_t i = 0; i < 30; ++i) {
      slopes.push_back(Slope(p.logits, i, loss));
    }
    loss();
    TESSERA_ASSERT_OK(p.Gradient(ops()));
    for (int64_t i = 0; i < 30; ++i) {
      EXPECT_NEAR(p.logits.at(i), slopes[i], 1e-8);
    }
  }
}

// The gradient of capped logits is that of the logits, times the cap's slope.
TEST_P(OpsConformanceTest, CrossEntropyGradientPassesTheCap) {
  std::mt19937_64 random(12);
  constexpr double kCap = 1.5;
  for (const DType dtype : kComputedTypes) {
    Problem p(dtype, 6, {7, 140}, random);
    p.terms = {.label_smoothing = 0.1, .z_loss = 1e-3, .vocabulary = 140};
    TESSERA_ASSERT_OK(ops().Run(op::SoftCap{kCap, p.logits.view()}));
    const std::vector<double> capped = p.logits.values();
    TESSERA_ASSERT_OK(p.Forward(ops()));
    Problem plain = p;
    TESSERA_ASSERT_OK(plain.Gradient(ops()));
    std::vector<double> expected = plain.logits.values(), rounding;
    for (size_t i = 0; i < expected.size(); ++i) {
      // The plain gradient of 16-bit types was rounded once already.
      rounding.push_back(std::abs(expected[i]) / 256);
      expected[i] *= 1 - capped[i] / kCap * (capped[i] / kCap);
    }
    p.cap = kCap;
    TESSERA_ASSERT_OK(p.Gradient(ops()));
    if (dtype == DType::kF64 || dtype == DType::kF32) rounding.clear();
    ExpectClose(p.logits, expected, 2, rounding);
  }
}

TEST_P(OpsConformanceTest, CrossEntropyOfALogitThatIsNaNIsNaN) {
  std::mt19937_64 random(3);
  for (int64_t place = 0; place < 40; ++place) {
    Problem p(DType::kF32, 1, {0, 40}, random);
    p.logits.set(place, std::numeric_limits<double>::quiet_NaN());
    TESSERA_ASSERT_OK(ops().Run(op::RowMax{p.logits.view(), p.largest.view()}));
    EXPECT_TRUE(std::isnan(p.largest.at(0))) << place;
  }
}

TEST_P(OpsConformanceTest, CrossEntropyOfARowOfScaleZeroIsZeroWhateverItHolds) {
  std::mt19937_64 random(4);
  Problem p(DType::kBF16, 1, {0, 5}, random);
  p.logits.set(2, std::numeric_limits<double>::quiet_NaN());
  p.scales = {0};
  TESSERA_ASSERT_OK(p.Forward(ops()));
  TESSERA_ASSERT_OK(p.Gradient(ops()));
  EXPECT_EQ(p.logits.values(), std::vector<double>(5, 0.0));
}

TEST_P(OpsConformanceTest, CrossEntropyOfARowWithoutTargetIsZero) {
  std::mt19937_64 random(5);
  for (const LossTerms& terms :
       {LossTerms{},
        LossTerms{.label_smoothing = 0.1, .z_loss = 0.01, .vocabulary = 12}}) {
    Problem p(DType::kF32, 3, {5, 12}, random);
    p.logits.set(2, std::numeric_limits<double>::quiet_NaN());
    p.targets = {kNoTarget, 7, 1};
    p.scales = {1, 1, 1};
    p.terms = terms;
    TESSERA_ASSERT_OK(p.Forward(ops()));
    EXPECT_EQ(p.picked.at(0), 0);
    TESSERA_ASSERT_OK(p.Gradient(ops()));
    for (int64_t j = 0; j < 7; ++j) {
      EXPECT_EQ(p.logits.at(j), 0);
      EXPECT_NE(p.logits.at(7 + j), 0);
      EXPECT_NE(p.logits.at(14 + j), 0);
    }
  }
}

TEST_P(OpsConformanceTest, CrossEntropyLossesFollowFromStatistics) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    TestTensor largest(dtype, {5}), sum(dtype, {5}), picked(dtype, {5});
    // Large logits must not absorb the logarithm.
    largest.Set({1e7, -2, 0.5, 3, std::nan("")});
    sum.Set({1.25, 8, 1, 2, 1});
    picked.Set({1e7, -3, 0.5, 0, 0});
    const std::vector<int64_t> targets = {0, 9, 2, kNoTarget, kNoTarget};
    TestTensor losses(DType::kF64, {5});
    TESSERA_ASSERT_OK(ops().Run(
        op::CrossEntropyLosses{largest.view(), sum.view(), picked.view(),
                               ListOf(targets), losses.view()}));
    EXPECT_DOUBLE_EQ(losses.at(0), std::log(1.25));
    EXPECT_DOUBLE_EQ(losses.at(1), std::log(8) + 1);
    EXPECT_DOUBLE_EQ(losses.at(2), 0);
    EXPECT_EQ(losses.at(3), 0);
    EXPECT_EQ(losses.at(4), 0);
  }
  const TestTensor two(DType::kF32, {2}), wide(DType::kF64, {2}),
      narrow(DType::kBF16, {2}), flat(DType::kF32, {1, 2});
  const TestTensor losses(DType::kF64, {2}), three(DType::kF64, {3});
  std::vector<int64_t> targets = {0, 1};
  const auto refuses = [&](const TestTensor& largest, const TestTensor& sum,
                           const TestTensor& losses, const char* text) {
    EXPECT_THAT(
        ops().Run(op::CrossEntropyLosses{largest.view(), sum.view(), two.view(),
                                         ListOf(targets), losses.view()}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refuses(two, wide, losses,
          "CrossEntropyLosses: \"sum\" is of f64; it should be of f32.");
  refuses(two, narrow, losses,
          "CrossEntropyLosses: \"sum\" is of bf16; it should be of f32.");
  refuses(two, flat, losses, "CrossEntropyLosses: \"sum\" has shape [1,2]");
  refuses(narrow, narrow, losses, "CrossEntropyLosses: \"largest\" is of bf16");
  refuses(flat, two, losses, "CrossEntropyLosses: \"largest\" has shape [1,2]");
  refuses(two, two, three,
          "CrossEntropyLosses: \"losses\" has 3 numbers; it should have 2");
  refuses(two, two, two,
          "CrossEntropyLosses: \"losses\" is of f32; it should be of f64.");
  targets.push_back(2);
  refuses(two, two, losses,
          "CrossEntropyLosses: \"targets\" has 3 numbers; it should have 2");
  EXPECT_EQ(losses.values(), std::vector<double>(2, 0));
}

TEST_P(OpsConformanceTest, CrossEntropyRefusesWhatDoesNotFitAndWritesNothing) {
  std::mt19937_64 random(6);
  Problem p(DType::kBF16, 2, {0, 3}, random);
  const TestTensor three(DType::kF32, {3}), narrow(DType::kBF16, {2});
  const auto before = p.logits.bytes();
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(ops().Run(op::RowMax{p.logits.view(), narrow.view()}),
              refused("RowMax: \"largest\" is of bf16; it should be of f32."));
  EXPECT_THAT(
      ops().Run(op::SumExp{p.logits.view(), three.view(), p.sum.view()}),
      refused("SumExp: \"largest\" has shape [3]; it should be [2]."));
  EXPECT_THAT(ops().Run(op::Pick{
                  p.logits.view(), {0, 4}, ListOf(p.targets), p.picked.view()}),
              refused("Pick: \"logits\" has shape [2,3]; it should be [2,4]."));
  p.targets.push_back(1);
  EXPECT_THAT(ops().Run(op::Pick{p.logits.view(), p.held, ListOf(p.targets),
                                 p.picked.view()}),
              refused("Pick: \"targets\" has 3 numbers; it should have 2"));
  EXPECT_THAT(p.Gradient(ops()),
              refused("CrossEntropyGradient: \"targets\" has 3"));
  p.targets.pop_back();
  p.scales.pop_back();
  EXPECT_THAT(p.Gradient(ops()),
              refused("CrossEntropyGradient: \"scales\" has 1"));
  p.scales.push_back(1);
  p.terms = {.label_smoothing = 1, .vocabulary = 3};
  EXPECT_THAT(p.Gradient(ops()),
              refused("label smoothing of 1; it should be at least 0 and"));
  p.terms = {.label_smoothing = 0.1, .vocabulary = 2};
  EXPECT_THAT(p.Gradient(ops()), refused("vocabulary of 2 words, and words up "
                                         "to 3 are held"));
  p.terms = {.z_loss = -1};
  EXPECT_THAT(p.Gradient(ops()), refused("z-loss of -1; it should be"));
  EXPECT_EQ(p.logits.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
