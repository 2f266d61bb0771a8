#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
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

constexpr double kEpsilon = 1e-3;

struct Norm {
  Norm(DType dtype, int64_t rows, int64_t n, std::mt19937_64& random,
       bool gaps = true)
      : rows(rows),
        n(n),
        x(dtype, {rows, n}, gaps ? 3 : 0),
        weight(dtype, {n}),
        y(dtype, {rows, n}, gaps ? 2 : 0),
        gradient(dtype, {rows, n}, gaps ? 1 : 0),
        x_gradient(dtype, {rows, n}, gaps ? 4 : 0),
        weight_gradient(StatisticsFor(dtype), {n}),
        inverse(StatisticsFor(dtype), {rows}) {
    x.Randomise(random);
    weight.Randomise(random);
    gradient.Randomise(random);
    FindStatistics();
  }

  absl::Status Forward(Ops& ops) {
    return ops.Run(op::RmsNorm{kEpsilon, x.view(), weight.view(), y.view(),
                               inverse.view()});
  }
  absl::Status InputGradient(Ops& ops) {
    return ops.Run(op::RmsNormInputGradient{gradient.view(), x.view(),
                                            weight.view(), inverse.view(),
                                            x_gradient.view()});
  }
  absl::Status WeightGradient(Ops& ops, TestTensor& target) {
    return ops.Run(op::RmsNormWeightGradient{gradient.view(), x.view(),
                                             inverse.view(), target.view()});
  }

  // The f64 reference for the statistics of x.
  void FindStatistics() {
    inverses.assign(rows, 0);
    const double count = std::max<double>(1, static_cast<double>(n));
    for (int64_t i = 0; i < rows; ++i) {
      double squares = 0;
      for (int64_t j = 0; j < n; ++j) squares += std::pow(x.at(i * n + j), 2);
      inverses[i] = 1 / std::sqrt(squares / count + kEpsilon);
    }
  }
  double Normalised(int64_t i, int64_t j) const {
    return x.at(i * n + j) * inverses[i];
  }

  int64_t rows, n;
  TestTensor x, weight, y, gradient, x_gradient, weight_gradient, inverse;
  std::vector<double> inverses;
};

struct Shape {
  int64_t rows, n;
};
constexpr Shape kShapes[] = {{1, 1},    {3, 5}, {2, 16}, {5, 67},
                             {2, 1030}, {0, 4}, {3, 0}};

void ForEachNorm(const std::function<void(Norm&)>& body) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << dtype << " " << shape.rows << "x" << shape.n);
      Norm norm(dtype, shape.rows, shape.n, random);
      body(norm);
    }
  }
}

TEST_P(OpsConformanceTest, NormsAreTheirFormulas) {
  ForEachNorm([&](Norm& norm) {
    TESSERA_ASSERT_OK(norm.Forward(ops()));
    std::vector<double> y;
    for (int64_t i = 0; i < norm.rows; ++i) {
      for (int64_t j = 0; j < norm.n; ++j) {
        y.push_back(norm.Normalised(i, j) * norm.weight.at(j));
      }
    }
    ExpectClose(norm.y, y, 4);
    ExpectClose(norm.inverse, norm.inverses);
    EXPECT_TRUE(norm.y.GapsAreIntact());
  });
}

TEST_P(OpsConformanceTest, NormsInputGradientsAreTheirFormulas) {
  ForEachNorm([&](Norm& norm) {
    TESSERA_ASSERT_OK(norm.Forward(ops()));
    TESSERA_ASSERT_OK(norm.InputGradient(ops()));
    std::vector<double> expected;
    const auto n = static_cast<double>(norm.n);
    for (int64_t i = 0; i < norm.rows; ++i) {
      double product = 0;
      const auto g = [&](int64_t j) {
        return norm.gradient.at(i * norm.n + j) * norm.weight.at(j);
      };
      for (int64_t j = 0; j < norm.n; ++j) {
        product += g(j) * norm.Normalised(i, j);
      }
      for (int64_t j = 0; j < norm.n; ++j) {
        expected.push_back((g(j) - norm.Normalised(i, j) * product / n) *
                           norm.inverses[i]);
      }
    }
    // In rows with one element, terms of this magnitude cancel.
    ExpectClose(norm.x_gradient, expected, 4 / std::sqrt(kEpsilon));
    EXPECT_TRUE(norm.x_gradient.GapsAreIntact());
  });
}

TEST_P(OpsConformanceTest, NormsWeightGradientsAddUpInEitherType) {
  ForEachNorm([&](Norm& norm) {
    TESSERA_ASSERT_OK(norm.Forward(ops()));
    for (const DType dtype : {norm.x.dtype(), norm.inverse.dtype()}) {
      TestTensor target(dtype, {norm.n});
      std::vector<double> expected(norm.n, 2.0);
      target.Set(expected);
      for (int64_t i = 0; i < norm.rows; ++i) {
        for (int64_t j = 0; j < norm.n; ++j) {
          expected[j] +=
              norm.gradient.at(i * norm.n + j) * norm.Normalised(i, j);
        }
      }
      TESSERA_ASSERT_OK(norm.WeightGradient(ops(), target));
      ExpectClose(target, expected, 10);
    }
  });
}

TEST_P(OpsConformanceTest, NormsGradientsAreFiniteDifferences) {
  std::mt19937_64 random(2);
  Norm norm(DType::kF64, 3, 11, random);
  const auto f = [&] {
    EXPECT_THAT(norm.Forward(ops()), IsOk());
    return Dot(norm.gradient, norm.y);
  };
  f();
  TESSERA_ASSERT_OK(norm.InputGradient(ops()));
  TESSERA_ASSERT_OK(norm.WeightGradient(ops(), norm.weight_gradient));
  for (int64_t i = 0; i < norm.x.size(); ++i) {
    EXPECT_NEAR(norm.x_gradient.at(i), Slope(norm.x, i, f), 1e-7);
  }
  for (int64_t j = 0; j < 11; ++j) {
    EXPECT_NEAR(norm.weight_gradient.at(j), Slope(norm.weight, j, f), 1e-7);
  }
}

TEST_P(OpsConformanceTest, NormsOfSumsHaveTheBitsOfTwoOperations) {
  std::mt19937_64 random(7);
  ForEachNorm([&](Norm& norm) {
    TestTensor residual(norm.x.dtype(), {norm.rows, norm.n}, 5);
    residual.Randomise(random);
    Norm fused = norm;
    TESSERA_ASSERT_OK(ops().Run(op::Add{residual.view(), norm.x.view()}));
    TESSERA_ASSERT_OK(norm.Forward(ops()));
    TESSERA_ASSERT_OK(ops().Run(
        op::AddRmsNorm{kEpsilon, residual.view(), fused.weight.view(),
                       fused.x.view(), fused.y.view(), fused.inverse.view()}));
    EXPECT_EQ(fused.x.bytes(), norm.x.bytes());
    EXPECT_EQ(fused.y.bytes(), norm.y.bytes());
    EXPECT_EQ(fused.inverse.bytes(), norm.inverse.bytes());

    TESSERA_ASSERT_OK(norm.InputGradient(ops()));
    TESSERA_ASSERT_OK(
        ops().Run(op::Add{residual.view(), norm.x_gradient.view()}));
    TESSERA_ASSERT_OK(ops().Run(op::AddRmsNormInputGradient{
        fused.gradient.view(), fused.x.view(), fused.weight.view(),
        fused.inverse.view(), residual.view(), fused.x_gradient.view()}));
    EXPECT_EQ(fused.x_gradient.bytes(), norm.x_gradient.bytes());
    // The result may overwrite the residual's gradient.
    TESSERA_ASSERT_OK(ops().Run(op::AddRmsNormInputGradient{
        fused.gradient.view(), fused.x.view(), fused.weight.view(),
        fused.inverse.view(), residual.view(), residual.view()}));
    EXPECT_EQ(residual.values(), norm.x_gradient.values());
    EXPECT_TRUE(residual.GapsAreIntact());
  });
}

// For few rows, and for as many as several parts of a sum have.
TEST_P(OpsConformanceTest, NormsGradientsInOnePassHaveTheBitsOfTwoOperations) {
  std::mt19937_64 random(9);
  const auto expect = [&](Norm& norm, int64_t gap) {
    TESSERA_ASSERT_OK(norm.Forward(ops()));
    for (const DType dtype : {norm.x.dtype(), norm.inverse.dtype()}) {
      TestTensor residual(norm.x.dtype(), {norm.rows, norm.n}, gap);
      residual.Randomise(random);
      TestTensor sum(dtype, {norm.n});
      sum.Randomise(random);
      TestTensor fused_sum = sum;
      Norm fused = norm;
      TESSERA_ASSERT_OK(norm.WeightGradient(ops(), sum));
      TESSERA_ASSERT_OK(ops().Run(op::AddRmsNormInputGradient{
          norm.gradient.view(), norm.x.view(), norm.weight.view(),
          norm.inverse.view(), residual.view(), norm.x_gradient.view()}));
      const auto run = [&](const TestTensor& to) {
        return ops().Run(op::AddRmsNormGradients{
            fused.gradient.view(), fused.x.view(), fused.weight.view(),
            fused.inverse.view(), residual.view(), to.view(),
            fused_sum.view()});
      };
      TESSERA_ASSERT_OK(run(fused.x_gradient));
      EXPECT_EQ(fused.x_gradient.bytes(), norm.x_gradient.bytes());
      EXPECT_EQ(fused_sum.bytes(), sum.bytes());
      // The result may overwrite the gradient.
      TESSERA_ASSERT_OK(norm.WeightGradient(ops(), sum));
      TESSERA_ASSERT_OK(run(fused.gradient));
      EXPECT_EQ(fused.gradient.values(), norm.x_gradient.values());
      EXPECT_EQ(fused_sum.bytes(), sum.bytes());
      EXPECT_TRUE(fused.gradient.GapsAreIntact());
    }
  };
  ForEachNorm([&](Norm& norm) { expect(norm, 5); });
  // Packs of 16 bytes.
  for (const DType dtype : kComputedTypes) {
    SCOPED_TRACE(dtype);
    Norm norm(dtype, 37, 48, random, /*gaps=*/false);
    expect(norm, 0);
  }
  // More columns than a block's shared memory holds.
  Norm wide(DType::kF64, 2, 6144, random, /*gaps=*/false);
  expect(wide, 0);
}

TEST_P(OpsConformanceTest, NormsOfSumsAreTheirFormulas) {
  std::mt19937_64 random(8);
  ForEachNorm([&](Norm& norm) {
    TestTensor residual(norm.x.dtype(), {norm.rows, norm.n});
    residual.Randomise(random);
    std::vector<double> sums;
    for (int64_t i = 0; i < norm.x.size(); ++i) {
      sums.push_back(norm.x.at(i) + residual.at(i));
    }
    TESSERA_ASSERT_OK(ops().Run(
        op::AddRmsNorm{kEpsilon, residual.view(), norm.weight.view(),
                       norm.x.view(), norm.y.view(), norm.inverse.view()}));
    ExpectClose(norm.x, sums);
    norm.FindStatistics();
    std::vector<double> y;
    for (int64_t i = 0; i < norm.rows; ++i) {
      for (int64_t j = 0; j < norm.n; ++j) {
        y.push_back(norm.Normalised(i, j) * norm.weight.at(j));
      }
    }
    ExpectClose(norm.y, y, 4);
    ExpectClose(norm.inverse, norm.inverses);
    EXPECT_TRUE(norm.x.GapsAreIntact());
    EXPECT_TRUE(norm.y.GapsAreIntact());
  });
}

// Computes the norm of all columns from the sums of two ranks, each with a part
// of the columns.
TEST_P(OpsConformanceTest, NormsOfPartsAreThoseOfWholeRows) {
  ForEachNorm([&](Norm& norm) {
    TESSERA_ASSERT_OK(norm.Forward(ops()));
    TESSERA_ASSERT_OK(norm.InputGradient(ops()));
    const std::vector<double> y = norm.y.values();
    const std::vector<double> x_gradient = norm.x_gradient.values();
    const auto ranges = {std::pair<int64_t, int64_t>{0, norm.n / 3},
                         {norm.n / 3, norm.n - norm.n / 3}};
    const auto of = [](const TestTensor& x, const auto& range) {
      return *x.view().Narrow(x.shape().size() - 1, range.first, range.second);
    };
    TestTensor sums(norm.inverse.dtype(), {norm.rows}), part = sums;
    const auto add = [&] {
      TESSERA_ASSERT_OK(ops().Run(op::Add{part.view(), sums.view()}));
    };
    for (const auto& range : ranges) {
      TESSERA_ASSERT_OK(
          ops().Run(op::RmsNormSums{of(norm.x, range), part.view()}));
      add();
    }
    const int64_t width = std::max<int64_t>(norm.n, 1);
    for (const auto& range : ranges) {
      TESSERA_ASSERT_OK(ops().Run(op::RmsNormOfSums{
          kEpsilon, width, of(norm.x, range), of(norm.weight, range),
          sums.view(), of(norm.y, range), norm.inverse.view()}));
    }
    ExpectClose(norm.y, y, 8);
    ExpectClose(norm.inverse, norm.inverses);
    TESSERA_ASSERT_OK(ops().Run(op::Fill{0, sums.view()}));
    for (const auto& range : ranges) {
      TESSERA_ASSERT_OK(ops().Run(op::RmsNormGradientSums{
          of(norm.gradient, range), of(norm.x, range), of(norm.weight, range),
          norm.inverse.view(), part.view()}));
      add();
    }
    for (const auto& range : ranges) {
      TESSERA_ASSERT_OK(ops().Run(op::RmsNormInputGradientOfSums{
          width, of(norm.gradient, range), of(norm.x, range),
          of(norm.weight, range), norm.inverse.view(), sums.view(),
          of(norm.x_gradient, range)}));
    }
    ExpectClose(norm.x_gradient, x_gradient, 8 / std::sqrt(kEpsilon));
    EXPECT_TRUE(norm.x_gradient.GapsAreIntact());
  });
}

TEST_P(OpsConformanceTest, NormsMayWriteOverTheirInput) {
  std::mt19937_64 random(5);
  Norm norm(DType::kF32, 3, 50, random);
  TESSERA_ASSERT_OK(norm.Forward(ops()));
  TESSERA_ASSERT_OK(norm.InputGradient(ops()));
  const std::vector<double> x_gradient = norm.x_gradient.values();
  TESSERA_ASSERT_OK(ops().Run(op::RmsNormInputGradient{
      norm.gradient.view(), norm.x.view(), norm.weight.view(),
      norm.inverse.view(), norm.gradient.view()}));
  EXPECT_EQ(norm.gradient.values(), x_gradient);
  TESSERA_ASSERT_OK(
      ops().Run(op::RmsNorm{kEpsilon, norm.x.view(), norm.weight.view(),
                            norm.x.view(), norm.inverse.view()}));
  EXPECT_EQ(norm.x.values(), norm.y.values());
}

auto Refused(const char* text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST_P(OpsConformanceTest, RejectsInvalidNormsAndWritesNothing) {
  std::mt19937_64 random(6);
  Norm norm(DType::kBF16, 3, 5, random);
  const auto before = norm.y.bytes();
  const TestTensor four(DType::kBF16, {4}), narrow(DType::kBF16, {3});
  EXPECT_THAT(ops().Run(op::RmsNorm{kEpsilon, norm.x.view(), four.view(),
                                    norm.y.view(), norm.inverse.view()}),
              Refused("RmsNorm: \"weight\" has shape [4]; it should be [5]."));
  EXPECT_THAT(ops().Run(op::RmsNorm{kEpsilon, norm.x.view(), norm.weight.view(),
                                    norm.y.view(), narrow.view()}),
              Refused("RmsNorm: \"inverse\" is of bf16; it should be of f32."));
  EXPECT_THAT(ops().Run(op::RmsNorm{-1, norm.x.view(), norm.weight.view(),
                                    norm.y.view(), norm.inverse.view()}),
              Refused("RmsNorm: epsilon is -1; it should be at least 0."));
  EXPECT_THAT(ops().Run(op::RmsNormInputGradient{
                  norm.gradient.view(), norm.x.view(), norm.weight.view(),
                  narrow.view(), norm.x_gradient.view()}),
              Refused("RmsNormInputGradient: \"inverse\" is of bf16"));
  EXPECT_THAT(ops().Run(op::RmsNormInputGradient{
                  norm.gradient.view(), norm.x.view(), norm.weight.view(),
                  norm.inverse.view(), four.view()}),
              Refused("RmsNormInputGradient: \"x_gradient\" has shape [4]"));
  EXPECT_THAT(
      ops().Run(op::RmsNormWeightGradient{norm.gradient.view(), norm.x.view(),
                                          norm.inverse.view(), four.view()}),
      Refused("RmsNormWeightGradient: \"weight_gradient\" has shape"));
  EXPECT_THAT(
      ops().Run(op::RmsNormWeightGradient{
          four.view(), norm.x.view(), norm.inverse.view(), norm.weight.view()}),
      Refused("RmsNormWeightGradient: \"gradient\" has shape [4]"));
  EXPECT_THAT(ops().Run(op::RmsNormSums{norm.x.view(), narrow.view()}),
              Refused("RmsNormSums: \"sums\" is of bf16; it should be of f32"));
  EXPECT_THAT(ops().Run(op::RmsNormOfSums{
                  kEpsilon, 0, norm.x.view(), norm.weight.view(),
                  norm.inverse.view(), norm.y.view(), norm.inverse.view()}),
              Refused("RmsNormOfSums: width is 0; it should be at least 1."));
  EXPECT_EQ(norm.y.bytes(), before);
}

TEST_P(OpsConformanceTest, RejectsInvalidAddRmsNormAndWritesNothing) {
  std::mt19937_64 random(6);
  Norm norm(DType::kBF16, 3, 5, random);
  const TestTensor four(DType::kBF16, {4});
  const auto before = norm.y.bytes();
  const auto x_before = norm.x.bytes();
  EXPECT_THAT(ops().Run(op::AddRmsNorm{kEpsilon, norm.gradient.view(),
                                       norm.weight.view(), four.view(),
                                       norm.y.view(), norm.inverse.view()}),
              Refused("AddRmsNorm: \"x\" has shape [4]"));
  EXPECT_THAT(ops().Run(op::AddRmsNorm{-1, norm.gradient.view(),
                                       norm.weight.view(), norm.x.view(),
                                       norm.y.view(), norm.inverse.view()}),
              Refused("AddRmsNorm: epsilon is -1; it should be at least 0."));
  EXPECT_THAT(ops().Run(op::AddRmsNormInputGradient{
                  norm.gradient.view(), norm.x.view(), norm.weight.view(),
                  norm.inverse.view(), four.view(), norm.x_gradient.view()}),
              Refused("AddRmsNormInputGradient: \"residual_gradient\" has "
                      "shape [4]"));
  EXPECT_EQ(norm.x.bytes(), x_before);
  EXPECT_EQ(norm.y.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
