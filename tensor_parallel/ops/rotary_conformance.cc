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
#include "tensor_parallel/ops/ops_conformance.h"
#include "tensor_parallel/ops/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

std::vector<double> Turned(const TestTensor& x, double base, double sign,
                           const std::vector<int64_t>& positions) {
  const int64_t heads = x.shape()[1], d = x.shape()[2];
  std::vector<double> y(x.size());
  for (int64_t row = 0; row < x.shape()[0] * heads; ++row) {
    for (int64_t i = 0; i < d / 2; ++i) {
      const double exponent =
          -2 * static_cast<double>(i) / static_cast<double>(d);
      const double angle = sign * static_cast<double>(positions[row / heads]) *
                           std::pow(base, exponent);
      const double a = x.at(row * d + i), b = x.at(row * d + i + d / 2);
      y[row * d + i] = a * std::cos(angle) - b * std::sin(angle);
      y[row * d + i + d / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  return y;
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
        const auto expected = Turned(x, 10000, inverse ? -1 : 1, positions);
        TESSERA_ASSERT_OK(
            ops().Rotate(10000, inverse, ListOf(positions), x.view()));
        ExpectClose(x, expected, 2);
        EXPECT_TRUE(x.GapsAreIntact());
      }
    }
  }
}

TEST_P(OpsConformanceTest, RotateKeepsNoTableOfOtherArguments) {
  std::mt19937_64 random(2);
  std::vector<int64_t> positions = {3, 7};
  const auto expect = [&](DType dtype, double base, int64_t d) {
    TestTensor x(dtype, {2, 2, d});
    x.Randomise(random);
    const auto expected = Turned(x, base, 1, positions);
    TESSERA_ASSERT_OK(ops().Rotate(base, false, ListOf(positions), x.view()));
    ExpectClose(x, expected, 2);
  };
  expect(DType::kF32, 100, 8);
  expect(DType::kF32, 100, 8);
  expect(DType::kF32, 500, 8);
  expect(DType::kF32, 500, 4);
  expect(DType::kF64, 500, 4);
  expect(DType::kF32, 500, 4);
  positions = {7, 3};
  expect(DType::kF32, 500, 4);
  expect(DType::kF64, 500, 4);
}

TEST_P(OpsConformanceTest, RotateInverseIsTheGradient) {
  std::mt19937_64 random(3);
  const std::vector<int64_t> positions = {5, 11};
  TestTensor x(DType::kF64, {2, 2, 6}), gradient(DType::kF64, {2, 2, 6});
  x.Randomise(random);
  gradient.Randomise(random);
  const auto f = [&] {
    TestTensor y = x;
    EXPECT_THAT(ops().Rotate(50, false, ListOf(positions), y.view()), IsOk());
    return Dot(gradient, y);
  };
  TestTensor x_gradient = gradient;
  TESSERA_ASSERT_OK(
      ops().Rotate(50, true, ListOf(positions), x_gradient.view()));
  for (int64_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(x_gradient.at(i), Slope(x, i, f), 1e-8);
  }
}

TEST_P(OpsConformanceTest, RotateRefusesWhatDoesNotFitAndWritesNothing) {
  TestTensor x(DType::kF32, {2, 1, 4}), odd(DType::kF32, {2, 1, 3});
  const TestTensor narrow(DType::kI32, {2});
  const std::vector<int64_t> positions = {1, 2};
  const auto before = x.bytes();
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(ops().Rotate(10, false, ListOf(positions), odd.view()),
              refused("Rotate: \"x\" has heads of 3 elements; their number "
                      "should be even."));
  EXPECT_THAT(ops().Rotate(0, false, ListOf(positions), x.view()),
              refused("Rotate: base is 0; it should be positive and finite."));
  EXPECT_THAT(ops().Rotate(10, false, ListOf(std::vector<int64_t>()), x.view()),
              refused("Rotate: \"positions\" has 0 numbers; it should have 2"));
  EXPECT_THAT(ops().Rotate(10, false, narrow.view(), x.view()),
              refused("Rotate: \"positions\" is of i32; it should be of i64"));
  EXPECT_EQ(x.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
