#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype/small_float.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/kernels.h"
#include "tensor_parallel/ops_cpu/testing/instruction_sets.h"
#include "tensor_parallel/ops_cpu/testing/vector_probe.h"

namespace tessera::tensor_parallel::cpu {
namespace {

template <typename T, typename S = StatisticOf<T>>
std::vector<S> ExpOf(const std::vector<S>& x) {
  std::vector<S> y(x.size());
  ProbeExp<T>(x.data(), y.data(), static_cast<int64_t>(x.size()));
  return y;
}

// Errors in units in the last place of the result.
template <typename S>
double WorstError(const std::vector<S>& x) {
  const std::vector<S> y = ExpOf<S>(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(x[i]));
    const S rounded = static_cast<S>(exact);
    const S unit =
        std::nextafter(rounded, std::numeric_limits<S>::infinity()) - rounded;
    worst = std::max(
        worst,
        static_cast<double>(std::fabs(static_cast<long double>(y[i]) - exact) /
                            static_cast<long double>(unit)));
  }
  return worst;
}

TEST(Exp, IsWithinItsErrorOverTheWholeRange) {
  std::mt19937_64 random(1);
  std::vector<float> f32;
  for (float x = -103; x < 88.5f; x += 0.0009765625f) f32.push_back(x);
  std::vector<double> f64;
  std::uniform_real_distribution<double> any(-744, 709);
  for (int i = 0; i < 200000; ++i) f64.push_back(any(random));
  ForEachInstructionSet([&] {
    EXPECT_LT(WorstError(f32), 1.5);
    EXPECT_LT(WorstError(f64), 2.0);
  });
}

TEST(Exp, ForBf16IsWithinItsError) {
  std::vector<float> x;
  for (float v = -87; v < 88; v += 0.0009765625f) x.push_back(v);
  ForEachInstructionSet([&] {
    const std::vector<float> y = ExpOf<BF16>(x);
    double worst_near = 0, worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const double error = std::fabs(y[i] / exact - 1);
      worst = std::max(worst, error);
      if (std::fabs(x[i]) < 30) worst_near = std::max(worst_near, error);
    }
    EXPECT_LT(worst_near, 0x1p-17);
    EXPECT_LT(worst, 0x1p-16);
  });
}

template <typename T>
void ExpectSpecialValues() {
  using S = StatisticOf<T>;
  const S infinity = std::numeric_limits<S>::infinity();
  const S nan = std::numeric_limits<S>::quiet_NaN();
  const std::vector<S> x = {0, -S{0}, infinity, -infinity, nan, 10000, -10000};
  const std::vector<S> y = ExpOf<T>(x);
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  EXPECT_EQ(y[2], infinity);
  EXPECT_EQ(y[3], 0);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], infinity);
  EXPECT_EQ(y[6], 0);
}

TEST(Exp, OfSpecialValuesIsWhatItShouldBe) {
  ForEachInstructionSet([] {
    ExpectSpecialValues<float>();
    ExpectSpecialValues<double>();
    ExpectSpecialValues<BF16>();
  });
}

TEST(Exp, HasTheSameBitsForEveryInstructionSet) {
  std::vector<float> x;
  for (float v = -110; v < 95; v += 0.0137f) x.push_back(v);
  std::vector<float> first, first_for_bf16;
  ForEachInstructionSet([&] {
    if (first.empty()) {
      first = ExpOf<float>(x);
      first_for_bf16 = ExpOf<BF16>(x);
    }
    EXPECT_EQ(ExpOf<float>(x), first);
    EXPECT_EQ(ExpOf<BF16>(x), first_for_bf16);
  });
}

template <typename T>
class RoundedBlock : public ::testing::Test {};
using RoundedTypes = ::testing::Types<BF16, F16>;
TYPED_TEST_SUITE(RoundedBlock, RoundedTypes);

TYPED_TEST(RoundedBlock, IsRoundedAsTheScalarTypeIs) {
  std::mt19937_64 random(2);
  std::vector<float> x = {0.0f,
                          -0.0f,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::denorm_min(),
                          std::bit_cast<float>(0x3f808000),
                          std::bit_cast<float>(0x3f818000),
                          std::bit_cast<float>(0x7f800001)};
  for (int i = 0; i < 100000; ++i) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  // All signs, exponents and upper 8 bits of fractions, followed by the least,
  // a half of f16's last bit, and the most: ties, subnormals and overflows.
  for (uint32_t upper = 0; upper < 1u << 17; ++upper) {
    for (uint32_t lower : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu}) {
      x.push_back(std::bit_cast<float>(upper << 15 | lower));
    }
  }
  ForEachInstructionSet([&] {
    std::vector<TypeParam> y(x.size());
    ProbeRound(x.data(), y.data(), static_cast<int64_t>(x.size()));
    std::vector<float> back(x.size());
    ProbeWiden(y.data(), back.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const float expected = static_cast<float>(TypeParam(x[i]));
      const bool same = std::isnan(x[i])
                            ? std::isnan(back[i])
                            : std::bit_cast<uint32_t>(back[i]) ==
                                  std::bit_cast<uint32_t>(expected);
      ASSERT_TRUE(same) << x[i] << " is " << back[i];
    }
  });
}

TYPED_TEST(RoundedBlock, IsWidenedAsTheScalarTypeIs) {
  std::vector<TypeParam> x;
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
    x.push_back(TypeParam::FromBits(static_cast<uint16_t>(bits)));
  }
  ForEachInstructionSet([&] {
    std::vector<float> y(x.size());
    ProbeWiden(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const auto expected = static_cast<float>(x[i]);
      const bool same = std::isnan(expected)
                            ? std::isnan(y[i])
                            : std::bit_cast<uint32_t>(y[i]) ==
                                  std::bit_cast<uint32_t>(expected);
      ASSERT_TRUE(same) << expected << " is " << y[i];
    }
  });
}

TEST(Block, TouchesTheFirstElementsAlone) {
  ForEachInstructionSet([] {
    for (int64_t count = 0; count < 40; ++count) {
      const std::vector<float> x(count, 1.5f);  // asan detects access beyond.
      std::vector<BF16> y(count + 4, BF16(7.0f));
      ProbeRound(x.data(), y.data(), count);
      for (int64_t i = 0; i < count + 4; ++i) {
        EXPECT_EQ(static_cast<float>(y[i]), i < count ? 1.5f : 7.0f);
      }
    }
  });
}

TEST(Block, SumsAndFindsTheLargestOfItsFirstElements) {
  ForEachInstructionSet([] {
    for (int64_t count = 1; count <= 16; ++count) {
      std::vector<float> x;
      for (int64_t i = 0; i < count; ++i) {
        x.push_back(static_cast<float>(i * 7 % 5) - 9);
      }
      float sum = 0;
      for (float value : x) sum += value;
      const BlockSummary summary = ProbeBlock(x.data(), count);
      EXPECT_EQ(summary.sum, sum);
      EXPECT_EQ(summary.largest, *std::max_element(x.begin(), x.end()));
      x[count / 2] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(ProbeBlock(x.data(), count).largest));
    }
  });
}

}  // namespace
}  // namespace tessera::tensor_parallel::cpu
