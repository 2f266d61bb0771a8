#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops/testing/rounding.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::HasSubstr;

constexpr DType kFp8Types[] = {DType::kF8E4M3, DType::kF8E5M2};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

auto Refused(const char* text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TestTensor Scalar(double value) {
  TestTensor scalar(DType::kF32, {1});
  scalar.Set({value});
  return scalar;
}

TestTensor Absent(DType dtype) { return TestTensor(dtype, {0, 0}); }

// The values of a format that are not NaN, from low to high.
std::vector<double> ValuesOf(DType dtype) {
  std::vector<double> values;
  for (int i = 0; i < 256; ++i) {
    const auto bits = static_cast<uint8_t>(i);
    const double value = dtype == DType::kF8E4M3
                             ? static_cast<double>(F8E4M3::FromBits(bits))
                             : static_cast<double>(F8E5M2::FromBits(bits));
    if (std::isfinite(value)) values.push_back(value);
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// The nearest of the values, by search. In a tie, the value with the even
// mantissa, which has more factors of two.
double Nearest(const std::vector<double>& values, double x) {
  if (std::isnan(x)) return x;
  const auto above = std::lower_bound(values.begin(), values.end(), x);
  if (above == values.end()) return values.back();
  if (above == values.begin()) return values.front();
  const double low = *(above - 1), high = *above;
  const double middle = (low + high) / 2;
  if (x != middle) return x < middle ? low : high;
  const double step = high - low;
  return std::fmod(std::fabs(low) / step, 2) == 0 ? low : high;
}

void ExpectSameValues(const std::vector<double>& actual,
                      const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << i;
    } else {
      EXPECT_EQ(actual[i], expected[i]) << i;
    }
  }
}

std::vector<double> Transposed(const std::vector<double>& x, int64_t m,
                               int64_t n) {
  std::vector<double> result(x.size());
  for (int64_t i = 0; i < m * n; ++i) result[i % n * m + i / n] = x[i];
  return result;
}

TEST_P(OpsConformanceTest, CastTransposeRoundsToTheNearestAndTransposes) {
  std::mt19937_64 random(1);
  for (const DType from : {DType::kF32, DType::kBF16}) {
    for (const DType to : kFp8Types) {
      const std::vector<double> values = ValuesOf(to);
      for (const Dims& shape : std::vector<Dims>{
               {1, 1}, {3, 5}, {64, 64}, {65, 63}, {16, 130}, {130, 48}}) {
        for (const int64_t gap : {0, 3, 16}) {
          const int64_t m = shape[0], n = shape[1];
          TestTensor x(from, shape, gap), y(to, shape, gap);
          TestTensor transposed(to, {n, m}, gap);
          x.Randomise(random, to == DType::kF8E4M3 ? 60 : 8000);
          TestTensor amax = Scalar(0);
          const TestTensor scale = Scalar(1.7);
          TESSERA_ASSERT_OK(
              ops().Run(op::CastTranspose{x.view(), scale.view(), amax.view(),
                                          y.view(), transposed.view()}));
          std::vector<double> expected = x.values();
          double largest = 0;
          for (double& value : expected) {
            largest = std::max(largest, std::fabs(value));
            value = Nearest(values, static_cast<float>(value) *
                                        static_cast<float>(scale.at(0)));
          }
          ExpectSameValues(y.values(), expected);
          ExpectSameValues(transposed.values(), Transposed(expected, m, n));
          EXPECT_EQ(amax.at(0), largest);
          EXPECT_TRUE(y.GapsAreIntact());
          EXPECT_TRUE(transposed.GapsAreIntact());
        }
      }
    }
  }
}

// Every exponent of f32, and all ties between neighbours.
TEST_P(OpsConformanceTest, CastTransposeRoundsEveryExponentAndTie) {
  for (const DType to : kFp8Types) {
    const std::vector<double> values = ValuesOf(to);
    std::vector<float> inputs;
    for (int exponent = -149; exponent < 128; ++exponent) {
      for (const double fraction : {1.0, 1.0625, 1.125, 1.3, 1.5, 1.9375}) {
        const auto x = static_cast<float>(std::ldexp(fraction, exponent));
        inputs.push_back(x);
        inputs.push_back(-x);
      }
    }
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      const auto middle = static_cast<float>((values[i] + values[i + 1]) / 2);
      inputs.push_back(middle);
      inputs.push_back(std::nextafter(middle, 1e30f));
      inputs.push_back(std::nextafter(middle, -1e30f));
    }
    inputs.insert(inputs.end(), {0.0f, -0.0f, 448.0f, 449.0f, 464.0f, 465.0f,
                                 57344.0f, 61439.0f, 61440.0f, -1e38f});
    TestTensor x(DType::kF32, {1, static_cast<int64_t>(inputs.size())});
    x.Set(std::vector<double>(inputs.begin(), inputs.end()));
    TestTensor y(to, x.shape());
    TestTensor amax = Scalar(0);
    TESSERA_ASSERT_OK(ops().Run(op::CastTranspose{
        x.view(), Scalar(1).view(), amax.view(), y.view(), Absent(to).view()}));
    std::vector<double> expected(inputs.begin(), inputs.end());
    for (double& value : expected) value = Nearest(values, value);
    ExpectSameValues(y.values(), expected);
  }
}

TEST_P(OpsConformanceTest, CastTransposeSaturatesAndKeepsNans) {
  for (const DType to : kFp8Types) {
    const double largest = to == DType::kF8E4M3 ? 448 : 57344;
    TestTensor x(DType::kF32, {1, 4}), transposed(to, {4, 1});
    x.Set({kInfinity, -kInfinity, -1e30, 1});
    TestTensor amax = Scalar(3);
    TESSERA_ASSERT_OK(
        ops().Run(op::CastTranspose{x.view(), Scalar(2).view(), amax.view(),
                                    Absent(to).view(), transposed.view()}));
    ExpectSameValues(transposed.values(), {largest, -largest, -largest, 2});
    EXPECT_EQ(amax.at(0), kInfinity);
    x.Set({kNan, -kNan, 1, 2});
    TESSERA_ASSERT_OK(
        ops().Run(op::CastTranspose{x.view(), Scalar(2).view(), amax.view(),
                                    Absent(to).view(), transposed.view()}));
    ExpectSameValues(transposed.values(), {kNan, kNan, 2, 4});
    EXPECT_EQ(transposed.bytes()[0], std::byte{0x7f});
    EXPECT_EQ(transposed.bytes()[1], std::byte{0x7f});
    EXPECT_TRUE(std::isnan(amax.at(0)));
  }
}

TEST_P(OpsConformanceTest, CastTransposeKeepsTheLargerAmaxAndMayOnlyMeasure) {
  TestTensor x(DType::kBF16, {2, 3});
  x.Set({1, -5, 2, 0, 3, 4});
  TestTensor amax = Scalar(4.5);
  const auto measure = [&] {
    return ops().Run(op::CastTranspose{x.view(), Scalar(1).view(), amax.view(),
                                       Absent(DType::kF8E4M3).view(),
                                       Absent(DType::kF8E4M3).view()});
  };
  TESSERA_ASSERT_OK(measure());
  EXPECT_EQ(amax.at(0), 5);
  x.Set({0, 0, 0, 0, 0, 0});
  TESSERA_ASSERT_OK(measure());
  EXPECT_EQ(amax.at(0), 5);
}

TEST_P(OpsConformanceTest, CastTransposeRefusesWhatDoesNotFit) {
  TestTensor x(DType::kF32, {2, 3}), wide(DType::kF64, {2, 3});
  TestTensor y(DType::kF8E4M3, {2, 3}), turned(DType::kF8E5M2, {3, 2});
  TestTensor amax = Scalar(0), two(DType::kF32, {2});
  const TestTensor none = Absent(DType::kF8E4M3), one = Scalar(1);
  const TestTensor half(DType::kF16, {2, 3});
  EXPECT_THAT(ops().Run(op::CastTranspose{wide.view(), one.view(), amax.view(),
                                          y.view(), none.view()}),
              Refused("\"x\" is of f64; it may be of f32 or bf16"));
  EXPECT_THAT(ops().Run(op::CastTranspose{half.view(), one.view(), amax.view(),
                                          y.view(), none.view()}),
              Refused("\"x\" is of f16; it may be of f32 or bf16"));
  EXPECT_THAT(ops().Run(op::CastTranspose{x.view(), two.view(), amax.view(),
                                          y.view(), none.view()}),
              Refused("\"scale\" has shape [2]; it should have one element"));
  EXPECT_THAT(ops().Run(op::CastTranspose{x.view(), one.view(), amax.view(),
                                          x.view(), none.view()}),
              Refused("\"y\" is of f32; it should be of fp8_e4m3 or fp8_e5m2"));
  EXPECT_THAT(ops().Run(op::CastTranspose{x.view(), one.view(), amax.view(),
                                          none.view(), y.view()}),
              Refused("\"transposed\" has shape [2,3]; it should be [3,2]"));
  EXPECT_THAT(ops().Run(op::CastTranspose{x.view(), one.view(), amax.view(),
                                          y.view(), turned.view()}),
              Refused("should be of one type"));
}

void ExpectGemmFp8IsReference(Ops& ops, Arithmetic arithmetic,
                              const Fp8GemmOptions& options, DType a_type,
                              DType b_type, DType c_type, const Dims& sizes,
                              std::mt19937_64& random) {
  SCOPED_TRACE(testing::Message() << a_type << " " << b_type << " " << c_type
                                  << " " << DimsToString(sizes) << " "
                                  << options.accumulate << options.fast);
  const int64_t m = sizes[0], n = sizes[1], k = sizes[2];
  TestTensor a(a_type, {m, k}, 16), b(b_type, {n, k});
  TestTensor c(c_type, {m, n}, 8);
  a.Randomise(random);
  b.Randomise(random);
  c.Randomise(random);
  const std::vector<double> left = a.values(), right = b.values();
  const TestTensor a_inverse = Scalar(0.5), b_inverse = Scalar(0.75);
  std::vector<double> expected(m * n), errors(m * n);
  for (int64_t i = 0; i < m * n; ++i) {
    double sum = 0, magnitudes = 0;
    for (int64_t l = 0; l < k; ++l) {
      const double product = left[i / n * k + l] * right[i % n * k + l];
      sum += product;
      magnitudes += std::fabs(product);
    }
    expected[i] = 0.375 * sum + (options.accumulate ? c.at(i) : 0);
    errors[i] = 0.375 * Fp8SumError(arithmetic, magnitudes);
  }
  if (!options.accumulate) c.Set(std::vector<double>(m * n, kNan));
  TESSERA_ASSERT_OK(ops.Run(op::GemmFp8{options, a.view(), a_inverse.view(),
                                        b.view(), b_inverse.view(), c.view()}));
  ExpectClose(c, expected, 1 + std::sqrt(static_cast<double>(k)), errors);
  EXPECT_TRUE(c.GapsAreIntact());
}

TEST_P(OpsConformanceTest, GemmFp8IsTheTextbooks) {
  std::mt19937_64 random(3);
  const std::pair<DType, DType> types[] = {{DType::kF8E4M3, DType::kF8E4M3},
                                           {DType::kF8E5M2, DType::kF8E4M3},
                                           {DType::kF8E4M3, DType::kF8E5M2}};
  for (const auto& [a_type, b_type] : types) {
    for (const DType c_type : {DType::kF32, DType::kBF16}) {
      for (const Dims& sizes : std::vector<Dims>{
               {16, 16, 16}, {48, 32, 80}, {16, 64, 2064}, {32, 16, 0}}) {
        for (const bool accumulate : {false, true}) {
          for (const bool fast : {false, true}) {
            ExpectGemmFp8IsReference(ops(), arithmetic(),
                                     {.accumulate = accumulate, .fast = fast},
                                     a_type, b_type, c_type, sizes, random);
          }
        }
      }
    }
  }
}

TEST_P(OpsConformanceTest, GemmFp8RefusesWhatDoesNotFit) {
  const TestTensor a(DType::kF8E4M3, {16, 32}), b(DType::kF8E4M3, {48, 32});
  const TestTensor narrow(DType::kF8E4M3, {48, 16}), one = Scalar(1);
  const TestTensor steep_a(DType::kF8E5M2, {16, 32}),
      steep_b(DType::kF8E5M2, {48, 32});
  const TestTensor bf16(DType::kBF16, {48, 32});
  TestTensor c(DType::kF32, {16, 48}), wide(DType::kF64, {16, 48});
  const TestTensor half(DType::kF16, {16, 48});
  const auto refuses = [&](const TestTensor& x, const TestTensor& y,
                           const TestTensor& z, const char* text) {
    EXPECT_THAT(ops().Run(op::GemmFp8{
                    {}, x.view(), one.view(), y.view(), one.view(), z.view()}),
                Refused(text));
  };
  refuses(a, narrow, c, "\"b\" has shape [48,16]; it should be [48,32]");
  refuses(a, bf16, c, "\"b\" is of bf16; it should be of fp8_e4m3");
  refuses(a, b, wide, "\"c\" is of f64; it may be of f32 or bf16");
  refuses(a, b, half, "\"c\" is of f16; it may be of f32 or bf16");
  refuses(a, b, bf16, "\"c\" has shape [48,32]; it should be [16,48]");
  refuses(steep_a, steep_b, c, "one should be of fp8_e4m3");
}

TEST_P(OpsConformanceTest, UpdateScalesFollowsTheLargestOfTheHistory) {
  const int steps = 3, n = 2;
  TestTensor largest(DType::kF32, {n}), amax(DType::kF32, {n});
  TestTensor history(DType::kF32, {steps, n}), scale(DType::kF32, {n}),
      inverse(DType::kF32, {n});
  largest.Set({448, 57344});
  scale.Set({1, 1});
  inverse.Set({1, 1});
  const auto step = [&](double x, double y) {
    amax.Set({x, y});
    return ops().Run(op::UpdateScales{1, largest.view(), amax.view(),
                                      history.view(), scale.view(),
                                      inverse.view()});
  };
  TESSERA_ASSERT_OK(step(7, 0));  // Nothing is known of the second.
  EXPECT_EQ(scale.values(), (std::vector<double>{32, 1}));
  EXPECT_EQ(inverse.values(), (std::vector<double>{1 / 32.0, 1}));
  EXPECT_EQ(amax.values(), (std::vector<double>{0, 0}));
  TESSERA_ASSERT_OK(step(3.5, 1));
  EXPECT_EQ(scale.values(), (std::vector<double>{32, 28672}));
  TESSERA_ASSERT_OK(step(kNan, kInfinity));  // As if they were 0.
  EXPECT_EQ(history.values(), (std::vector<double>{0, 0, 3.5, 1, 7, 0}));
  TESSERA_ASSERT_OK(step(1.75, 0.5));  // The 7 is forgotten.
  EXPECT_EQ(history.values(), (std::vector<double>{1.75, 0.5, 0, 0, 3.5, 1}));
  EXPECT_EQ(scale.values(), (std::vector<double>{64, 28672}));
  TESSERA_ASSERT_OK(step(1e-44, 0));
  TESSERA_ASSERT_OK(step(1e-44, 0));
  TESSERA_ASSERT_OK(step(1e-44, 0));
  EXPECT_EQ(scale.at(0), 0x1p100);  // Not infinity.
  EXPECT_EQ(inverse.at(0), 0x1p-100);
  EXPECT_EQ(scale.at(1), 57344);  // Stays.
}

TEST_P(OpsConformanceTest, UpdateScalesWithoutHistoryFollowsAmax) {
  TestTensor largest(DType::kF32, {1}), amax = Scalar(7);
  TestTensor history(DType::kF32, {0, 1}), scale = Scalar(1),
                                           inverse = Scalar(1);
  largest.Set({448});
  TESSERA_ASSERT_OK(
      ops().Run(op::UpdateScales{0, largest.view(), amax.view(), history.view(),
                                 scale.view(), inverse.view()}));
  EXPECT_EQ(scale.at(0), 64);
  EXPECT_EQ(amax.at(0), 7);
}

TEST_P(OpsConformanceTest, UpdateScalesRefusesWhatDoesNotFit) {
  TestTensor largest(DType::kF32, {2}), amax(DType::kF32, {3});
  TestTensor two(DType::kF32, {2}), history(DType::kF32, {4, 3});
  EXPECT_THAT(
      ops().Run(op::UpdateScales{0, largest.view(), amax.view(), history.view(),
                                 two.view(), two.view()}),
      Refused("\"amax\" has shape [3]; it should be [2]"));
  EXPECT_THAT(
      ops().Run(op::UpdateScales{0, largest.view(), two.view(), history.view(),
                                 two.view(), two.view()}),
      Refused("\"history\" has shape [4,3]; it should be [4,2]"));
  TestTensor fits(DType::kF32, {4, 2});
  EXPECT_THAT(ops().Run(op::UpdateScales{-1, largest.view(), two.view(),
                                         fits.view(), two.view(), two.view()}),
              Refused("the margin is -1"));
}

}  // namespace
}  // namespace tessera::tensor_parallel
