#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

std::vector<double> Turned(const TestTensor& x, const Rotation& rotation,
                           double sign, const std::vector<int64_t>& positions) {
  const int64_t heads = x.shape()[1], d = x.shape()[2];
  const auto pairs = static_cast<int64_t>(rotation.frequencies.size());
  std::vector<double> y;
  for (int64_t i = 0; i < x.size(); ++i) y.push_back(x.at(i));
  for (int64_t row = 0; row < x.shape()[0] * heads; ++row) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = sign * static_cast<double>(positions[row / heads]) *
                           rotation.frequencies[i];
      const double c = rotation.factor * std::cos(angle);
      const double s = rotation.factor * std::sin(angle);
      const double a = x.at(row * d + i), b = x.at(row * d + i + pairs);
      y[row * d + i] = a * c - b * s;
      y[row * d + i + pairs] = b * c + a * s;
    }
  }
  return y;
}

Rotation WithBase(double base, int64_t d) {
  return RotaryFrequencies{.base = base}.Of(d, /*length=*/1);
}

TEST_P(OpsConformanceTest, RotateTurnsPairsByTheirAngle) {
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Dims& shape : {Dims{1, 1, 2}, Dims{5, 3, 10}, Dims{3, 2, 64},
                              Dims{0, 2, 4}, Dims{2, 0, 4}, Dims{2, 2, 0}}) {
      for (const bool inverse : {false, true}) {
        std::vector<int64_t> positions;
        for (int64_t i = 0; i < shape[0]; ++i) {
          positions.push_back(static_cast<int64_t>(random() % 100000) - 50);
        }
        TestTensor x(dtype, shape, 2);
        x.Randomise(random);
        const Rotation rotation = WithBase(10000, shape[2]);
        const auto expected = Turned(x, rotation, inverse ? -1 : 1, positions);
        TESSERA_ASSERT_OK(ops().Run(op::Rotate{
            inverse, RotaryTableOf(rotation, positions, dtype).view(),
            x.view()}));
        ExpectClose(x, expected, 2);
        EXPECT_TRUE(x.GapsAreIntact());
      }
    }
  }
}

// Sequences have the same positions.
TEST_P(OpsConformanceTest, RotateTurnsEverySequenceByTheTable) {
  std::mt19937_64 random(2);
  const std::vector<int64_t> positions = {3, 7, 4000};
  const std::vector<int64_t> all = {3, 7, 4000, 3, 7, 4000};
  for (const DType dtype : kComputedTypes) {
    // Whole packs, and rows that begin anywhere.
    for (const int64_t d : {6, 32}) {
      TestTensor x(dtype, {6, 3, d});
      x.Randomise(random);
      const Rotation rotation = WithBase(500, d);
      const auto expected = Turned(x, rotation, 1, all);
      TESSERA_ASSERT_OK(ops().Run(op::Rotate{
          false, RotaryTableOf(rotation, positions, dtype).view(), x.view()}));
      ExpectClose(x, expected, 2);
    }
  }
}

// A part of the head, with a factor.
TEST_P(OpsConformanceTest, RotateTurnsPartOfTheHead) {
  std::mt19937_64 random(4);
  for (const DType dtype : kComputedTypes) {
    for (const int64_t pairs : {0, 1, 5, 24, 32}) {
      Rotation rotation = {.factor = 1.25};
      for (int64_t i = 0; i < pairs; ++i) {
        rotation.frequencies.push_back(1.0 / static_cast<double>(1 + i));
      }
      const std::vector<int64_t> positions = {0, 1, 77, 9001, 131071};
      TestTensor x(dtype, {5, 2, 64}, 1);
      x.Randomise(random);
      const auto expected = Turned(x, rotation, -1, positions);
      TESSERA_ASSERT_OK(ops().Run(op::Rotate{
          true, RotaryTableOf(rotation, positions, dtype).view(), x.view()}));
      ExpectClose(x, expected, 3);
      EXPECT_TRUE(x.GapsAreIntact());
    }
  }
}

TEST_P(OpsConformanceTest, RotateInverseIsTheGradient) {
  std::mt19937_64 random(3);
  const std::vector<int64_t> positions = {5, 11};
  Rotation rotation = WithBase(50, 4);
  rotation.factor = 1.5;
  TestTensor x(DType::kF64, {2, 2, 6}), gradient(DType::kF64, {2, 2, 6});
  x.Randomise(random);
  gradient.Randomise(random);
  const TestTensor table = RotaryTableOf(rotation, positions, DType::kF64);
  const auto f = [&] {
    TestTensor y = x;
    EXPECT_THAT(ops().Run(op::Rotate{false, table.view(), y.view()}), IsOk());
    return Dot(gradient, y);
  };
  TestTensor x_gradient = gradient;
  TESSERA_ASSERT_OK(
      ops().Run(op::Rotate{true, table.view(), x_gradient.view()}));
  for (int64_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(x_gradient.at(i), Slope(x, i, f), 1e-8);
  }
}

TEST_P(OpsConformanceTest, RotateRefusesWhatDoesNotFitAndWritesNothing) {
  TestTensor x(DType::kBF16, {2, 1, 4});
  const auto before = x.bytes();
  const auto expect_refused = [&](const TestTensor& table, const char* text) {
    EXPECT_THAT(ops().Run(op::Rotate{false, table.view(), x.view()}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  expect_refused(TestTensor(DType::kF32, {2, 6}),
                 "Rotate: \"table\" turns 6 elements of a head; heads of \"x\" "
                 "have 4.");
  expect_refused(TestTensor(DType::kF32, {0, 4}),
                 "Rotate: \"table\" has 0 positions; the 2 tokens of \"x\" "
                 "should be a multiple.");
  expect_refused(TestTensor(DType::kF32, {3, 4}), "has 3 positions");
  expect_refused(TestTensor(DType::kF32, {2, 3}),
                 "it should be [positions, 2 pairs].");
  expect_refused(TestTensor(DType::kF32, {8}),
                 "it should be [positions, 2 pairs].");
  expect_refused(TestTensor(DType::kF64, {2, 4}), "\"table\" is of f64");
  expect_refused(TestTensor(DType::kF32, {2, 4}, /*gap=*/1), "\"table\"");
  EXPECT_EQ(x.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
