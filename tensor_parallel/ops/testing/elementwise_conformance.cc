#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/random/dropout.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

auto Refused(const char* text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

const std::vector<Dims> kMatrices = {{1, 1},  {3, 5},    {4, 16}, {7, 33},
                                     {2, 70}, {3, 5000}, {0, 3},  {3, 0}};
const std::vector<Dims> kShapes = {{},     {1},       {37},       {3, 5},
                                   {0, 4}, {2, 3, 5}, {3, 4, 20}, {2, 1, 3, 6}};

TEST_P(OpsConformanceTest, AddBiasAddsToEveryRow) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : kMatrices) {
      TestTensor x(dtype, shape, 3), bias(dtype, {shape[1]});
      x.Randomise(random);
      bias.Randomise(random);
      std::vector<double> expected = x.values();
      for (int64_t i = 0; i < x.size(); ++i) {
        expected[i] += bias.at(i % shape[1]);
      }
      TESSERA_ASSERT_OK(ops().Run(op::AddBias{bias.view(), x.view()}));
      ExpectClose(x, expected);
      EXPECT_TRUE(x.GapsAreIntact());
    }
  }
}

TEST_P(OpsConformanceTest, SumRowsAddsTheSumInEitherType) {
  std::mt19937_64 random(2);
  for (const DType dtype : kComputedTypes) {
    for (const DType target : {dtype, StatisticsFor(dtype)}) {
      for (const Dims& shape : kMatrices) {
        TestTensor x(dtype, shape, 3), sum(target, {shape[1]});
        x.Randomise(random);
        sum.Randomise(random);
        std::vector<double> expected = sum.values();
        for (int64_t i = 0; i < x.size(); ++i) {
          expected[i % shape[1]] += x.at(i);
        }
        TESSERA_ASSERT_OK(ops().Run(op::SumRows{x.view(), sum.view()}));
        ExpectClose(sum, expected, 3);
      }
    }
  }
}

TEST_P(OpsConformanceTest, AddTakesAnyShapeWithGapsAndStatistics) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    for (const DType target : {dtype, StatisticsFor(dtype)}) {
      for (const Dims& shape : kShapes) {
        for (const int64_t gap : {0, 2}) {
          TestTensor x(dtype, shape, gap), y(target, shape, 2 * gap);
          x.Randomise(random);
          y.Randomise(random);
          std::vector<double> expected = y.values();
          for (int64_t i = 0; i < x.size(); ++i) expected[i] += x.at(i);
          TESSERA_ASSERT_OK(ops().Run(op::Add{x.view(), y.view()}));
          ExpectClose(y, expected);
          EXPECT_TRUE(y.GapsAreIntact());
        }
      }
    }
  }
}

TEST_P(OpsConformanceTest, ScaleAndFillTakeAnyShapeWithGaps) {
  std::mt19937_64 random(5);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : kShapes) {
      TestTensor x(dtype, shape, 3);
      x.Randomise(random);
      std::vector<double> expected = x.values();
      for (double& value : expected) value *= -0.3;
      TESSERA_ASSERT_OK(ops().Run(op::Scale{-0.3, x.view()}));
      ExpectClose(x, expected);
      const double nothing = -std::numeric_limits<double>::infinity();
      TESSERA_ASSERT_OK(ops().Run(op::Fill{nothing, x.view()}));
      EXPECT_EQ(x.values(), std::vector<double>(x.size(), nothing));
      EXPECT_TRUE(x.GapsAreIntact());
    }
  }
}

TEST_P(OpsConformanceTest, SoftCapBendsTowardsItsCap) {
  std::mt19937_64 random(15);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : kShapes) {
      for (const double cap : {0.5, 30.0}) {
        TestTensor x(dtype, shape, 3);
        x.Randomise(random, 3);
        if (x.size() > 1) x.set(1, -60000);
        std::vector<double> expected = x.values();
        for (double& value : expected) value = cap * std::tanh(value / cap);
        TESSERA_ASSERT_OK(ops().Run(op::SoftCap{cap, x.view()}));
        ExpectClose(x, expected, cap);
        EXPECT_TRUE(x.GapsAreIntact());
      }
    }
  }
}

TEST_P(OpsConformanceTest, CastRoundsOnceAndWidensExactly) {
  std::mt19937_64 random(6);
  for (const auto& [from, to] : {std::pair{DType::kF32, DType::kBF16},
                                 std::pair{DType::kBF16, DType::kF32},
                                 std::pair{DType::kBF16, DType::kBF16},
                                 std::pair{DType::kF32, DType::kF32},
                                 std::pair{DType::kF64, DType::kF64}}) {
    for (const Dims& shape : kShapes) {
      TestTensor x(from, shape, 1), y(to, shape, 2), expected(to, shape);
      x.Randomise(random);
      expected.Set(x.values());
      TESSERA_ASSERT_OK(ops().Run(op::Cast{x.view(), y.view()}));
      EXPECT_EQ(y.values(), expected.values());
    }
  }
}

TEST_P(OpsConformanceTest, CopyTakesAnyStridesAndTypes) {
  std::mt19937_64 random(8);
  for (const DType dtype : {DType::kF64, DType::kBF16, DType::kI32}) {
    TestTensor x(dtype, {3, 4, 5}, 2), y(dtype, {5, 4, 3}, 1);
    x.Randomise(random, 100);
    TESSERA_ASSERT_OK(ops().Run(op::Copy{*x.view().Transpose(0, 2), y.view()}));
    for (int64_t i = 0; i < 60; ++i) {
      EXPECT_EQ(y.at(i), x.at(i % 3 * 20 + i / 3 % 4 * 5 + i / 12));
    }
    EXPECT_TRUE(y.GapsAreIntact());
  }
}

TEST_P(OpsConformanceTest, CopyRefusesWhatDoesNotFit) {
  TestTensor x(DType::kF32, {2, 3}), y(DType::kF32, {3, 2});
  TestTensor wide(DType::kF64, {2, 3});
  EXPECT_THAT(ops().Run(op::Copy{x.view(), y.view()}),
              Refused("Copy: \"y\" has shape [3,2]; it should be [2,3]."));
  EXPECT_THAT(ops().Run(op::Copy{x.view(), wide.view()}),
              Refused("Copy: \"y\" is of f64; it should be of f32."));
}

TEST_P(OpsConformanceTest, DropoutIsThatOfTheMask) {
  std::mt19937_64 random(9);
  const std::vector<int64_t> rows = {7, 3, 100};
  for (const DType dtype : kComputedTypes) {
    TestTensor x(dtype, {3, 300});
    x.Randomise(random);
    TestTensor expected = x;
    const DropoutMask mask = {
        .key = {.seed = 5, .stream = 2}, .probability = 0.3, .rows = rows};
    TESSERA_ASSERT_OK(ApplyDropout(mask, expected.view()));
    TESSERA_ASSERT_OK(ops().Run(op::Dropout{mask, x.view()}));
    EXPECT_EQ(x.values(), expected.values());
  }
  TestTensor x(DType::kF32, {3, 2});
  EXPECT_THAT(
      ops().Run(op::Dropout{{.probability = 1, .rows = rows}, x.view()}),
      Refused("must be in [0, 1)"));
  EXPECT_THAT(
      ops().Run(op::Dropout{{.probability = 0.5, .rows = {}}, x.view()}),
      Refused("[3,2]"));
}

TEST_P(OpsConformanceTest, SumAddsInOrder) {
  std::mt19937_64 random(10);
  for (const int64_t n : {0, 1, 2, 1000}) {
    TestTensor x(DType::kF64, {n}), total(DType::kF64, {1});
    x.Randomise(random, 1e8);
    total.Set({-1});
    double expected = 0;
    for (int64_t i = 0; i < n; ++i) expected += x.at(i);
    TESSERA_ASSERT_OK(ops().Run(op::Sum{0.25, x.view(), total.view()}));
    EXPECT_EQ(total.at(0), 0.25 * expected);
  }
  TestTensor two(DType::kF64, {2}), narrow(DType::kF32, {1});
  EXPECT_THAT(ops().Run(op::Sum{1, two.view(), two.view()}),
              Refused("Sum: \"total\" has 2 numbers; it should have 1"));
  EXPECT_THAT(ops().Run(op::Sum{1, narrow.view(), two.view()}),
              Refused("Sum: \"x\" is of f32; it should be of f64."));
}

TEST_P(OpsConformanceTest, RowDotsSumsOverTheLastDimension) {
  std::mt19937_64 random(7);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : {Dims{3, 2, 5}, Dims{1, 4, 40}, Dims{2, 0, 3},
                              Dims{2, 3, 0}, Dims{0, 1, 1}, Dims{2, 3, 4, 5}}) {
      for (const DType x_type : {StatisticsFor(dtype), dtype}) {
        TestTensor x(x_type, shape, 1), y(dtype, shape, 3);
        TestTensor dots(StatisticsFor(dtype),
                        Dims(shape.begin(), shape.end() - 1), 2);
        x.Randomise(random);
        y.Randomise(random);
        std::vector<double> expected(dots.size(), 0.0);
        for (int64_t i = 0; i < x.size(); ++i) {
          expected[i / shape.back()] += x.at(i) * y.at(i);
        }
        TESSERA_ASSERT_OK(
            ops().Run(op::RowDots{x.view(), y.view(), dots.view()}));
        ExpectClose(dots, expected, 5);
      }
    }
  }
}

TEST_P(OpsConformanceTest, ElementwiseRefusesWhatDoesNotFitAndWritesNothing) {
  TestTensor x(DType::kF32, {2, 3}), other(DType::kF64, {2, 3});
  TestTensor small(DType::kBF16, {2, 3}), row(DType::kF32, {2});
  const auto before = x.bytes();
  EXPECT_THAT(ops().Run(op::AddBias{row.view(), x.view()}),
              Refused("AddBias: \"bias\" has shape [2]; it should be [3]."));
  EXPECT_THAT(ops().Run(op::SumRows{x.view(), row.view()}),
              Refused("SumRows: \"bias_gradient\" has shape [2]"));
  EXPECT_THAT(ops().Run(op::Add{other.view(), x.view()}),
              Refused("Add: \"y\" is of f32; it should be of f64."));
  EXPECT_THAT(ops().Run(op::Add{x.view(), small.view()}),
              Refused("Add: \"y\" is of bf16; it should be of f32."));
  EXPECT_THAT(ops().Run(op::Cast{other.view(), x.view()}),
              Refused("Cast: \"y\" is of f32"));
  EXPECT_THAT(ops().Run(op::Cast{x.view(), other.view()}),
              Refused("Cast: \"y\" is of f64"));
  EXPECT_THAT(ops().Run(op::Cast{x.view(), row.view()}),
              Refused("it should be [2,3]"));
  EXPECT_THAT(ops().Run(op::Scale{2, *x.view().Transpose(0, 1)}),
              Refused("side by side"));
  EXPECT_THAT(ops().Run(op::SoftCap{0, x.view()}),
              Refused("SoftCap: cap is 0; it should be positive."));
  EXPECT_THAT(ops().Run(op::Fill{2, *x.view().Transpose(0, 1)}),
              Refused("Fill: \"x\" has"));
  EXPECT_THAT(ops().Run(op::RowDots{x.view(), x.view(), row.view()}),
              Refused("RowDots: \"output_gradient\" has shape [2,3]; it should "
                      "have 3 or 4 dimensions."));
  EXPECT_EQ(x.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
