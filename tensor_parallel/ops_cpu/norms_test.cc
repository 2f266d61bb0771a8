#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/elementwise.h"
#include "tensor_parallel/ops_cpu/matrices.h"
#include "tensor_parallel/ops_cpu/operand_checker.h"

namespace tessera::tensor_parallel::cpu {
namespace {

using ::testing::HasSubstr;

constexpr double kEpsilon = 1e-3;

struct Norm {
  Norm(DType dtype, int64_t rows, int64_t n, std::mt19937_64& random)
      : rows(rows),
        n(n),
        x(dtype, {rows, n}, 3),
        weight(dtype, {n}),
        y(dtype, {rows, n}, 2),
        gradient(dtype, {rows, n}, 1),
        x_gradient(dtype, {rows, n}, 4),
        weight_gradient(StatisticsOf(dtype), {n}),
        inverse(StatisticsOf(dtype), {rows}) {
    x.Randomise(random);
    weight.Randomise(random);
    gradient.Randomise(random);
    FindStatistics();
  }

  absl::Status Forward() {
    return RmsNorm(kEpsilon, x.view(), weight.view(), y.view(), inverse.view());
  }
  absl::Status InputGradient() {
    return RmsNormInputGradient(gradient.view(), x.view(), weight.view(),
                                inverse.view(), x_gradient.view());
  }
  absl::Status WeightGradient(TestTensor& target) {
    return RmsNormWeightGradient(gradient.view(), x.view(), inverse.view(),
                                 target.view());
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

TEST(Norms, AreTheirFormulas) {
  ForEachNorm([](Norm& norm) {
    TESSERA_ASSERT_OK(norm.Forward());
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

TEST(Norms, InputGradientsAreTheirFormulas) {
  ForEachNorm([](Norm& norm) {
    TESSERA_ASSERT_OK(norm.Forward());
    TESSERA_ASSERT_OK(norm.InputGradient());
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
    // In rows with one element terms of this size cancel.
    ExpectClose(norm.x_gradient, expected, 4 / std::sqrt(kEpsilon));
    EXPECT_TRUE(norm.x_gradient.GapsAreIntact());
  });
}

TEST(Norms, WeightGradientsAddUpInEitherType) {
  ForEachNorm([](Norm& norm) {
    TESSERA_ASSERT_OK(norm.Forward());
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
      TESSERA_ASSERT_OK(norm.WeightGradient(target));
      ExpectClose(target, expected, 10);
    }
  });
}

TEST(Norms, GradientsAreFiniteDifferences) {
  std::mt19937_64 random(2);
  Norm norm(DType::kF64, 3, 11, random);
  const auto f = [&] {
    EXPECT_THAT(norm.Forward(), IsOk());
    return Dot(norm.gradient, norm.y);
  };
  f();
  TESSERA_ASSERT_OK(norm.InputGradient());
  TESSERA_ASSERT_OK(norm.WeightGradient(norm.weight_gradient));
  for (int64_t i = 0; i < norm.x.size(); ++i) {
    EXPECT_NEAR(norm.x_gradient.at(i), Slope(norm.x, i, f), 1e-7);
  }
  for (int64_t j = 0; j < 11; ++j) {
    EXPECT_NEAR(norm.weight_gradient.at(j), Slope(norm.weight, j, f), 1e-7);
  }
}

TEST(Norms, HaveTheSameBitsForEveryInstructionSet) {
  std::mt19937_64 random(3);
  for (const DType dtype : kComputedTypes) {
    Norm norm(dtype, 4, 133, random);
    std::vector<std::vector<double>> first;
    ForEachInstructionSet([&] {
      norm.weight_gradient.Set(std::vector<double>(133, 0));
      TESSERA_ASSERT_OK(norm.Forward());
      TESSERA_ASSERT_OK(norm.InputGradient());
      TESSERA_ASSERT_OK(norm.WeightGradient(norm.weight_gradient));
      const std::vector<std::vector<double>> now = {
          norm.y.values(), norm.x_gradient.values(),
          norm.weight_gradient.values(), norm.inverse.values()};
      if (first.empty()) first = now;
      EXPECT_EQ(now, first);
    });
  }
}

TEST(Norms, OfARowAloneHaveTheBitsOfTheBatch) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    Norm batch(dtype, 6, 77, random);
    TESSERA_ASSERT_OK(batch.Forward());
    TESSERA_ASSERT_OK(batch.InputGradient());
    TESSERA_ASSERT_OK(batch.WeightGradient(batch.weight_gradient));
    TestTensor weight_gradient(batch.weight_gradient.dtype(), {77});
    for (int64_t i = 0; i < 6; ++i) {
      Norm alone(dtype, 1, 77, random);
      alone.weight = batch.weight;
      for (int64_t j = 0; j < 77; ++j) {
        alone.x.set(j, batch.x.at(i * 77 + j));
        alone.gradient.set(j, batch.gradient.at(i * 77 + j));
      }
      TESSERA_ASSERT_OK(alone.Forward());
      TESSERA_ASSERT_OK(alone.InputGradient());
      TESSERA_ASSERT_OK(alone.WeightGradient(weight_gradient));
      for (int64_t j = 0; j < 77; ++j) {
        EXPECT_EQ(alone.y.at(j), batch.y.at(i * 77 + j));
        EXPECT_EQ(alone.x_gradient.at(j), batch.x_gradient.at(i * 77 + j));
      }
    }
    EXPECT_EQ(weight_gradient.values(), batch.weight_gradient.values());
  }
}

TEST(Norms, MayWriteOverTheirInput) {
  std::mt19937_64 random(5);
  Norm norm(DType::kF32, 3, 50, random);
  TESSERA_ASSERT_OK(norm.Forward());
  TESSERA_ASSERT_OK(norm.InputGradient());
  const std::vector<double> x_gradient = norm.x_gradient.values();
  TESSERA_ASSERT_OK(RmsNormInputGradient(
      norm.gradient.view(), norm.x.view(), norm.weight.view(),
      norm.inverse.view(), norm.gradient.view()));
  EXPECT_EQ(norm.gradient.values(), x_gradient);
  TESSERA_ASSERT_OK(RmsNorm(kEpsilon, norm.x.view(), norm.weight.view(),
                            norm.x.view(), norm.inverse.view()));
  EXPECT_EQ(norm.x.values(), norm.y.values());
}

TEST(Norms, RefuseWhatDoesNotFitAndWriteNothing) {
  std::mt19937_64 random(6);
  Norm norm(DType::kBF16, 3, 5, random);
  const auto before = norm.y.bytes();
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  const TestTensor four(DType::kBF16, {4}), narrow(DType::kBF16, {3});
  EXPECT_THAT(RmsNorm(kEpsilon, norm.x.view(), four.view(), norm.y.view(),
                      norm.inverse.view()),
              refused("RmsNorm: \"weight\" has shape [4]; it should be [5]."));
  EXPECT_THAT(RmsNorm(kEpsilon, norm.x.view(), norm.weight.view(),
                      norm.y.view(), narrow.view()),
              refused("RmsNorm: \"inverse\" is of bf16; it should be of f32."));
  EXPECT_THAT(RmsNorm(-1, norm.x.view(), norm.weight.view(), norm.y.view(),
                      norm.inverse.view()),
              refused("RmsNorm: epsilon is -1; it should be at least 0."));
  EXPECT_THAT(RmsNormInputGradient(norm.gradient.view(), norm.x.view(),
                                   norm.weight.view(), narrow.view(),
                                   norm.x_gradient.view()),
              refused("RmsNormInputGradient: \"inverse\" is of bf16"));
  EXPECT_THAT(RmsNormInputGradient(norm.gradient.view(), norm.x.view(),
                                   norm.weight.view(), norm.inverse.view(),
                                   four.view()),
              refused("RmsNormInputGradient: \"x_gradient\" has shape [4]"));
  EXPECT_THAT(RmsNormWeightGradient(norm.gradient.view(), norm.x.view(),
                                    norm.inverse.view(), four.view()),
              refused("RmsNormWeightGradient: \"weight_gradient\" has shape"));
  EXPECT_THAT(RmsNormWeightGradient(four.view(), norm.x.view(),
                                    norm.inverse.view(), norm.weight.view()),
              refused("RmsNormWeightGradient: \"gradient\" has shape [4]"));
  EXPECT_EQ(norm.y.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
