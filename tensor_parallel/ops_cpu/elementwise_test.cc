#include "tensor_parallel/ops_cpu/elementwise.h"

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
#include "tensor_parallel/ops_cpu/matrices.h"
#include "tensor_parallel/ops_cpu/operand_checker.h"

namespace tessera::tensor_parallel::cpu {
namespace {

using ::testing::HasSubstr;

auto Refused(const char* text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

const std::vector<Dims> kMatrices = {{1, 1},  {3, 5},    {4, 16}, {7, 33},
                                     {2, 70}, {3, 5000}, {0, 3},  {3, 0}};
const std::vector<Dims> kShapes = {{},     {1},       {37},       {3, 5},
                                   {0, 4}, {2, 3, 5}, {3, 4, 20}, {2, 1, 3, 6}};

TEST(AddBias, AddsToEveryRow) {
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
      TESSERA_ASSERT_OK(AddBias(bias.view(), x.view()));
      ExpectClose(x, expected);
      EXPECT_TRUE(x.GapsAreIntact());
    }
  }
}

TEST(SumRows, AddsTheSumInEitherType) {
  std::mt19937_64 random(2);
  for (const DType dtype : kComputedTypes) {
    for (const DType target : {dtype, StatisticsOf(dtype)}) {
      for (const Dims& shape : kMatrices) {
        TestTensor x(dtype, shape, 3), sum(target, {shape[1]});
        x.Randomise(random);
        sum.Randomise(random);
        std::vector<double> expected = sum.values();
        for (int64_t i = 0; i < x.size(); ++i) {
          expected[i % shape[1]] += x.at(i);
        }
        TESSERA_ASSERT_OK(SumRows(x.view(), sum.view()));
        ExpectClose(sum, expected, 3);
      }
    }
  }
}

TEST(SumRows, SharedAmongCallsHasTheSameBits) {
  std::mt19937_64 random(3);
  TestTensor x(DType::kF32, {23, 77}, 1);
  x.Randomise(random);
  TestTensor once(DType::kF32, {77}), parts(DType::kF32, {77});
  TESSERA_ASSERT_OK(SumRows(x.view(), once.view()));
  for (const auto& [begin, size] : {std::pair{0, 1}, std::pair{1, 9},
                                    std::pair{10, 0}, std::pair{10, 13}}) {
    TESSERA_ASSERT_OK(SumRows(*x.view().Narrow(0, begin, size), parts.view()));
  }
  EXPECT_EQ(parts.values(), once.values());
}

TEST(Add, TakesAnyShapeWithGapsAndStatistics) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    for (const DType target : {dtype, StatisticsOf(dtype)}) {
      for (const Dims& shape : kShapes) {
        for (const int64_t gap : {0, 2}) {
          TestTensor x(dtype, shape, gap), y(target, shape, 2 * gap);
          x.Randomise(random);
          y.Randomise(random);
          std::vector<double> expected = y.values();
          for (int64_t i = 0; i < x.size(); ++i) expected[i] += x.at(i);
          TESSERA_ASSERT_OK(Add(x.view(), y.view()));
          ExpectClose(y, expected);
          EXPECT_TRUE(y.GapsAreIntact());
        }
      }
    }
  }
}

TEST(ScaleAndFill, TakeAnyShapeWithGaps) {
  std::mt19937_64 random(5);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : kShapes) {
      TestTensor x(dtype, shape, 3);
      x.Randomise(random);
      std::vector<double> expected = x.values();
      for (double& value : expected) value *= -0.3;
      TESSERA_ASSERT_OK(Scale(-0.3, x.view()));
      ExpectClose(x, expected);
      const double nothing = -std::numeric_limits<double>::infinity();
      TESSERA_ASSERT_OK(Fill(nothing, x.view()));
      EXPECT_EQ(x.values(), std::vector<double>(x.size(), nothing));
      EXPECT_TRUE(x.GapsAreIntact());
    }
  }
}

TEST(Cast, RoundsOnceAndWidensExactly) {
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
      TESSERA_ASSERT_OK(Cast(x.view(), y.view()));
      EXPECT_EQ(y.values(), expected.values());
    }
  }
}

TEST(RowDots, SumsOverTheLastDimension) {
  std::mt19937_64 random(7);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : {Dims{3, 2, 5}, Dims{1, 4, 40}, Dims{2, 0, 3},
                              Dims{2, 3, 0}, Dims{0, 1, 1}}) {
      TestTensor x(StatisticsOf(dtype), shape), y(dtype, shape, 3);
      TestTensor dots(StatisticsOf(dtype), {shape[0], shape[1]});
      x.Randomise(random);
      y.Randomise(random);
      std::vector<double> expected(dots.size(), 0.0);
      for (int64_t i = 0; i < x.size(); ++i) {
        expected[i / shape[2]] += x.at(i) * y.at(i);
      }
      TESSERA_ASSERT_OK(RowDots(x.view(), y.view(), dots.view()));
      ExpectClose(dots, expected, 5);
    }
  }
}

TEST(Elementwise, RefusesWhatDoesNotFitAndWritesNothing) {
  TestTensor x(DType::kF32, {2, 3}), other(DType::kF64, {2, 3});
  TestTensor small(DType::kBF16, {2, 3}), row(DType::kF32, {2});
  const auto before = x.bytes();
  EXPECT_THAT(AddBias(row.view(), x.view()),
              Refused("AddBias: \"bias\" has shape [2]; it should be [3]."));
  EXPECT_THAT(SumRows(x.view(), row.view()),
              Refused("SumRows: \"bias_gradient\" has shape [2]"));
  EXPECT_THAT(Add(other.view(), x.view()),
              Refused("Add: \"y\" is of f32; it should be of f64."));
  EXPECT_THAT(Add(x.view(), small.view()),
              Refused("Add: \"y\" is of bf16; it should be of f32."));
  EXPECT_THAT(Cast(other.view(), x.view()), Refused("Cast: \"y\" is of f32"));
  EXPECT_THAT(Cast(x.view(), other.view()), Refused("Cast: \"y\" is of f64"));
  EXPECT_THAT(Cast(x.view(), row.view()), Refused("it should be [2,3]"));
  EXPECT_THAT(Scale(2, *x.view().Transpose(0, 1)), Refused("side by side"));
  EXPECT_THAT(Fill(2, *x.view().Transpose(0, 1)), Refused("Fill: \"x\" has"));
  EXPECT_THAT(RowDots(x.view(), x.view(), row.view()),
              Refused("RowDots: \"output_gradient\" has shape [2,3]; it should "
                      "have 3 dimensions."));
  EXPECT_EQ(x.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
