#include "offload/optimizer/gradient_statistics.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/os/thread_pool.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/testing/step_state.h"

namespace tessera::offload {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

template <typename T>
std::vector<T> Normal(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(size);
  for (T& value : values) value = ConvertValue<T>(normal(random));
  return values;
}

template <typename T>
class GradientStatisticsTest : public ::testing::Test {};
using Types = ::testing::Types<double, float, BF16, F16>;
TYPED_TEST_SUITE(GradientStatisticsTest, Types);

TYPED_TEST(GradientStatisticsTest, SumsSquares) {
  for (size_t size : {0, 1, 31, 32, 33, 1000, 1025, 200000}) {
    const auto values = Normal<TypeParam>(size, size);
    long double sum = 0;
    for (const TypeParam& value : values) {
      const auto x = ConvertValue<double>(value);
      sum += static_cast<long double>(x) * x;
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const GradientStatistics statistics,
                                 MeasureGradient(std::span(values)));
    EXPECT_TRUE(statistics.IsFinite());
    EXPECT_NEAR(statistics.sum_of_squares, static_cast<double>(sum),
                static_cast<double>(sum) * 1e-14);
    EXPECT_EQ(statistics.Norm(), std::sqrt(statistics.sum_of_squares));
  }
}

TYPED_TEST(GradientStatisticsTest, IsIdenticalForAllThreadsAndInstructionSets) {
  const auto values = Normal<TypeParam>(3 * 65536 + 999, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const GradientStatistics once,
                               MeasureGradient(std::span(values)));
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    ForEachInstructionSet([&] {
      TESSERA_ASSERT_OK_AND_ASSIGN(const GradientStatistics statistics,
                                   MeasureGradient(std::span(values), pool));
      EXPECT_EQ(statistics.sum_of_squares, once.sum_of_squares);
    });
  }
}

TYPED_TEST(GradientStatisticsTest, DetectsNonFiniteValuesAnywhere) {
  const double bad[] = {std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(), std::nan("")};
  ForEachInstructionSet([&] {
    std::vector<TypeParam> values(100, ConvertValue<TypeParam>(2.0));
    for (size_t at = 0; at < 100; ++at) {
      for (double value : bad) {
        values[at] = ConvertValue<TypeParam>(value);
        TESSERA_ASSERT_OK_AND_ASSIGN(const GradientStatistics statistics,
                                     MeasureGradient(std::span(values)));
        EXPECT_FALSE(statistics.IsFinite());
        EXPECT_EQ(statistics.non_finite, 1);
        EXPECT_EQ(statistics.sum_of_squares, 99 * 4);
        values[at] = ConvertValue<TypeParam>(2.0);
      }
    }
    values.assign(100, ConvertValue<TypeParam>(std::nan("")));
    EXPECT_EQ(MeasureGradient(std::span(values))->non_finite, 100);
  });
}

TYPED_TEST(GradientStatisticsTest, TakesTheLargestElements) {
  const TypeParam largest =
      ConvertValue<TypeParam, FloatOverflow::kSaturate>(1e308);
  const std::vector<TypeParam> values(40, largest);
  TESSERA_ASSERT_OK_AND_ASSIGN(const GradientStatistics statistics,
                               MeasureGradient(std::span(values)));
  EXPECT_TRUE(statistics.IsFinite());
  // Squares of f64 overflow although the elements are finite.
  EXPECT_EQ(std::isinf(statistics.sum_of_squares),
            (std::is_same_v<TypeParam, double>));
}

TEST(MeasureGradient, RejectsInvalidSpans) {
  std::vector<int32_t> integers(4);
  EXPECT_THAT(
      MeasureGradient(std::span(integers)),
      StatusIs(kInvalid, ::testing::HasSubstr("elements are i32; give f64")));
  alignas(4) std::byte bytes[9] = {};
  EXPECT_THAT(MeasureGradient(ConstTypedSpan(bytes + 1, DType::kF32, 2)),
              StatusIs(kInvalid, ::testing::HasSubstr("not a multiple of 4")));
  EXPECT_THAT(MeasureGradient(ConstTypedSpan(nullptr, DType::kF32, 2)),
              StatusIs(kInvalid, ::testing::HasSubstr("without data")));
  EXPECT_THAT(MeasureGradient(ConstTypedSpan(bytes, DType::kF32, -1)),
              StatusIs(kInvalid));
}

TEST(GradientStatistics, Add) {
  GradientStatistics all = {9, 1};
  all.Add({16, 2});
  EXPECT_EQ(all.Norm(), 5);
  EXPECT_EQ(all.non_finite, 3);
}

TEST(ClipFactor, ReducesNorm) {
  EXPECT_EQ(ClipFactor(0.5, 1), 1);
  EXPECT_EQ(ClipFactor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(ClipFactor(4, 0), 1);
  EXPECT_EQ(ClipFactor(0, 1), 1);
}

}  // namespace
}  // namespace tessera::offload
