#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
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

// The formula of Hugging Face's transformers, by wavelengths.
double FrequencyOf(const RotaryFrequencies& f, int64_t i, int64_t d) {
  const double frequency =
      std::pow(f.base, -2 * static_cast<double>(i) / static_cast<double>(d));
  if (f.scaling == RotaryScaling::kNone) return frequency;
  if (f.scaling == RotaryScaling::kLinear) return frequency / f.factor;
  const double wave = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(f.original_positions);
  if (wave > original / f.low_turns) return frequency / f.factor;
  if (wave < original / f.high_turns) return frequency;
  const double smooth =
      (original / wave - f.low_turns) / (f.high_turns - f.low_turns);
  return ((1 - smooth) / f.factor + smooth) * frequency;
}

std::vector<double> Turned(const TestTensor& x, const RotaryFrequencies& f,
                           double sign, const std::vector<int64_t>& positions) {
  const int64_t heads = x.shape()[1], d = x.shape()[2];
  std::vector<double> y(x.size());
  for (int64_t row = 0; row < x.shape()[0] * heads; ++row) {
    for (int64_t i = 0; i < d / 2; ++i) {
      const double angle = sign * static_cast<double>(positions[row / heads]) *
                           FrequencyOf(f, i, d);
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
        const auto expected =
            Turned(x, {.base = 10000}, inverse ? -1 : 1, positions);
        TESSERA_ASSERT_OK(ops().Run(
            op::Rotate{{.base = 10000}, inverse, ListOf(positions), x.view()}));
        ExpectClose(x, expected, 2);
        EXPECT_TRUE(x.GapsAreIntact());
      }
    }
  }
}

TEST_P(OpsConformanceTest, RotateKeepsNoTableOfOtherArguments) {
  std::mt19937_64 random(2);
  std::vector<int64_t> positions = {3, 7};
  const auto expect = [&](DType dtype, const RotaryFrequencies& frequencies,
                          int64_t d) {
    TestTensor x(dtype, {2, 2, d});
    x.Randomise(random);
    const auto expected = Turned(x, frequencies, 1, positions);
    TESSERA_ASSERT_OK(
        ops().Run(op::Rotate{frequencies, false, ListOf(positions), x.view()}));
    ExpectClose(x, expected, 2);
  };
  expect(DType::kF32, {.base = 100}, 8);
  expect(DType::kF32, {.base = 100}, 8);
  expect(DType::kF32, {.base = 500}, 8);
  expect(DType::kF32, {.base = 500}, 4);
  expect(DType::kF64, {.base = 500}, 4);
  expect(DType::kF32, {.base = 500}, 4);
  RotaryFrequencies scaled = {
      .base = 500, .scaling = RotaryScaling::kLinear, .factor = 3};
  expect(DType::kF32, scaled, 4);
  scaled.factor = 5;
  expect(DType::kF32, scaled, 4);
  scaled.scaling = RotaryScaling::kLlama3;
  expect(DType::kF32, scaled, 4);
  scaled.original_positions = 100;
  expect(DType::kF32, scaled, 4);
  positions = {7, 3};
  expect(DType::kF32, {.base = 500}, 4);
  expect(DType::kF64, {.base = 500}, 4);
}

// Some frequencies of the head are low, some high and some between.
TEST_P(OpsConformanceTest, RotateScalesFrequencies) {
  std::mt19937_64 random(4);
  const RotaryFrequencies linear = {.scaling = RotaryScaling::kLinear,
                                    .factor = 2.5};
  const RotaryFrequencies llama3 = {.base = 500000,
                                    .scaling = RotaryScaling::kLlama3,
                                    .factor = 8,
                                    .low_turns = 1,
                                    .high_turns = 4,
                                    .original_positions = 8192};
  RotaryFrequencies other = llama3;
  other.low_turns = 0.25;
  other.high_turns = 32;
  other.original_positions = 64;
  for (const DType dtype : kComputedTypes) {
    for (const RotaryFrequencies& frequencies : {linear, llama3, other}) {
      const std::vector<int64_t> positions = {0, 1, 77, 9001, 131071};
      TestTensor x(dtype, {5, 2, 64}, 1);
      x.Randomise(random);
      const auto expected = Turned(x, frequencies, -1, positions);
      TESSERA_ASSERT_OK(ops().Run(
          op::Rotate{frequencies, true, ListOf(positions), x.view()}));
      // Frequencies are rounded a few times, in different orders here and in
      // the kernels.
      std::vector<double> allowance;
      for (int64_t i = 0; i < x.size(); ++i) {
        allowance.push_back(16 * std::numeric_limits<double>::epsilon() *
                            static_cast<double>(positions[i / (2 * 64)]));
      }
      ExpectClose(x, expected, 2, allowance);
    }
  }
}

TEST_P(OpsConformanceTest, RotateInverseIsTheGradient) {
  std::mt19937_64 random(3);
  const std::vector<int64_t> positions = {5, 11};
  TestTensor x(DType::kF64, {2, 2, 6}), gradient(DType::kF64, {2, 2, 6});
  x.Randomise(random);
  gradient.Randomise(random);
  const auto f = [&] {
    TestTensor y = x;
    EXPECT_THAT(
        ops().Run(op::Rotate{{.base = 50}, false, ListOf(positions), y.view()}),
        IsOk());
    return Dot(gradient, y);
  };
  TestTensor x_gradient = gradient;
  TESSERA_ASSERT_OK(ops().Run(
      op::Rotate{{.base = 50}, true, ListOf(positions), x_gradient.view()}));
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
  EXPECT_THAT(
      ops().Run(op::Rotate{{.base = 10}, false, ListOf(positions), odd.view()}),
      refused("Rotate: \"x\" has heads of 3 elements; their number "
              "should be even."));
  EXPECT_THAT(
      ops().Run(op::Rotate{{.base = 0}, false, ListOf(positions), x.view()}),
      refused("Rotate: base is 0; it should be positive and finite."));
  EXPECT_THAT(
      ops().Run(op::Rotate{
          {.base = 10}, false, ListOf(std::vector<int64_t>()), x.view()}),
      refused("Rotate: \"positions\" has 0 numbers; it should have 2"));
  EXPECT_THAT(
      ops().Run(op::Rotate{{.base = 10}, false, narrow.view(), x.view()}),
      refused("Rotate: \"positions\" is of i32; it should be of i64"));
  RotaryFrequencies scaled = {.scaling = RotaryScaling::kLlama3, .factor = 0};
  const auto expect = [&](const char* text) {
    EXPECT_THAT(
        ops().Run(op::Rotate{scaled, false, ListOf(positions), x.view()}),
        refused(text));
  };
  expect("Rotate: factor is 0; it should be positive and finite.");
  scaled.factor = std::numeric_limits<double>::infinity();
  expect("Rotate: factor is inf; it should be positive and finite.");
  scaled.factor = 2;
  scaled.low_turns = -1;
  expect("Rotate: low_turns is -1; it should be positive and finite.");
  scaled.low_turns = 4;
  expect("Rotate: high_turns is 4; it should be above low_turns, 4.");
  scaled.low_turns = 1;
  scaled.original_positions = 0;
  expect("Rotate: original_positions is 0; it should be positive and finite.");
  EXPECT_EQ(x.bytes(), before);
}

}  // namespace
}  // namespace tessera::tensor_parallel
