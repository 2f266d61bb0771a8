#include "base/dtype/float16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Float16Test, HasTheConstantsOfBinary16) {
  EXPECT_EQ(static_cast<float>(F16::Max()), 65504.0f);
  EXPECT_EQ(static_cast<float>(F16::MinNormal()), 0x1p-14f);
  EXPECT_EQ(static_cast<float>(F16::MinSubnormal()), 0x1p-24f);
  EXPECT_EQ(F16::Infinity().bits(), 0x7c00);
  EXPECT_EQ(F16::QuietNan().bits(), 0x7e00);
  EXPECT_EQ(F16(1.0f).bits(), 0x3c00);
  EXPECT_EQ(F16(-2.0).bits(), 0xc000);
  EXPECT_EQ(F16(0.1f).bits(), 0x2e66);
}

TEST(Float16Test, OverflowsFromTheMiddlePastTheLargestValue) {
  EXPECT_EQ(F16(std::nextafter(65520.0f, 0.0f)), F16::Max());
  EXPECT_EQ(F16(65520.0f), F16::Infinity());
  EXPECT_EQ(F16::Saturated(65520.0f), F16::Max());
}

// clang 14 has _Float16 only where the processor computes in it.
#if defined(__FLT16_MANT_DIG__) && !defined(__clang__)

void ExpectAsCompiler(float x) {
  const auto expected = static_cast<_Float16>(x);
  ASSERT_EQ(F16(x).bits(), std::bit_cast<uint16_t>(expected))
      << std::hexfloat << x;
}

TEST(Float16Test, DecodesEveryPatternAsTheCompilerDoes) {
  for (int i = 0; i < 1 << 16; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(F16::FromBits(bits))),
              std::bit_cast<uint32_t>(expected))
        << i;
  }
}

TEST(Float16Test, EncodesRandomFloatsAsTheCompilerDoes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 4'000'000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    ExpectAsCompiler(std::bit_cast<float>(bits));
    // Every other one near the format's own range.
    const uint32_t near = (bits & 0x87ffffff) | 0x38000000;
    ExpectAsCompiler(std::bit_cast<float>(near));
    if (HasFatalFailure()) return;
  }
}

TEST(Float16Test, EncodesRandomDoublesAsTheCompilerDoes) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 2'000'000; ++i) {
    const double significand =
        static_cast<double>(static_cast<int64_t>(random())) / 0x1p63;
    const double x =
        std::ldexp(significand, static_cast<int>(random() % 45) - 27);
    ASSERT_EQ(F16(x).bits(), std::bit_cast<uint16_t>(static_cast<_Float16>(x)))
        << std::hexfloat << x;
  }
}

#endif

}  // namespace
}  // namespace tessera
