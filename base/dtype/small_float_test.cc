#include "base/dtype/small_float.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <sstream>
#include <type_traits>

#include "base/testing/float_reference.h"
#include "gtest/gtest.h"

namespace tessera {

namespace {

template <typename T>
class SmallFloatTest : public ::testing::Test {
 protected:
  using Format = typename T::Format;
  static constexpr int kPatterns = 1 << Format::kBits;

  static T FromPattern(int bits) {
    return T::FromBits(static_cast<typename T::Bits>(bits));
  }
  // The expected result of Saturated when the constructor gives `bits`.
  static int Saturate(const FloatReference& reference, int bits) {
    const bool over =
        (bits & ~reference.sign_bit()) == reference.overflow_bits();
    return over ? bits - 1 : bits;
  }

  // Converts `value` and its negative from `Source`, with both overflow modes.
  template <typename Source>
  void ExpectRounds(Source value) {
    for (const Source x : {value, -value}) {
      const int expected = reference_.Round(static_cast<double>(x));
      ASSERT_EQ(T(x).bits(), expected) << std::hexfloat << x;
      ASSERT_EQ(T::Saturated(x).bits(), Saturate(reference_, expected))
          << std::hexfloat << x;
    }
  }
  template <typename Source>
  void ExpectRoundsAround(double value) {
    const auto x = static_cast<Source>(value);
    ASSERT_EQ(static_cast<double>(x), value);
    ExpectRounds(x);
    ExpectRounds(std::nextafter(x, Source{0}));
    ExpectRounds(std::nextafter(x, std::numeric_limits<Source>::infinity()));
  }

  const FloatReference reference_{{.exponent_bits = Format::kExponentBits,
                                   .mantissa_bits = Format::kMantissaBits,
                                   .has_infinity = Format::kHasInfinity}};
};

using SmallFloats = ::testing::Types<F16, BF16, F8E4M3, F8E5M2>;
TYPED_TEST_SUITE(SmallFloatTest, SmallFloats);

TYPED_TEST(SmallFloatTest, IsAStorageTypeOfItsBits) {
  static_assert(std::is_trivial_v<TypeParam>);
  static_assert(sizeof(TypeParam) * 8 == TypeParam::Format::kBits);
  static_assert(!std::is_convertible_v<float, TypeParam>);
  static_assert(!std::is_convertible_v<TypeParam, float>);
  static_assert(!std::is_constructible_v<TypeParam, bool>);
  static_assert(static_cast<float>(TypeParam(1.5f)) == 1.5f);
  EXPECT_EQ(TypeParam().bits(), 0);
}

TYPED_TEST(SmallFloatTest, EveryFinitePatternHasTheTextbookValue) {
  const auto& values = this->reference_.values();
  ASSERT_EQ(this->reference_.overflow_bits() - 1,
            TypeParam::Format::kMaxFinite);
  for (int i = 0; i <= TypeParam::Format::kMaxFinite; ++i) {
    const TypeParam positive = this->FromPattern(i);
    const TypeParam negative = -positive;
    ASSERT_EQ(static_cast<double>(positive), values[static_cast<size_t>(i)]);
    ASSERT_EQ(static_cast<float>(negative), -static_cast<float>(positive));
    ASSERT_TRUE(std::signbit(static_cast<float>(negative)));
    ASSERT_TRUE(positive.IsFinite());
    ASSERT_FALSE(positive.IsNan() || positive.IsInfinite());
  }
}

TYPED_TEST(SmallFloatTest, EveryPatternSurvivesTheRoundTrip) {
  int nans = 0;
  for (int i = 0; i < this->kPatterns; ++i) {
    const TypeParam x = this->FromPattern(i);
    const TypeParam from_float(static_cast<float>(x));
    const TypeParam from_double(static_cast<double>(x));
    ASSERT_EQ(from_float.bits(), from_double.bits()) << i;
    if (x.IsNan()) {
      ++nans;
      ASSERT_TRUE(std::isnan(static_cast<float>(x)));
      ASSERT_EQ(std::signbit(static_cast<float>(x)), x.SignBit());
      // The same NaN with the quiet bit set.
      const int quiet = TypeParam::Format::kQuietNan;
      ASSERT_EQ(from_float.bits(), i | quiet) << i;
    } else {
      ASSERT_EQ(from_float.bits(), i);
    }
  }
  using Format = typename TypeParam::Format;
  EXPECT_EQ(nans, Format::kHasInfinity ? 2 * Format::kMantissa : 2);
}

TYPED_TEST(SmallFloatTest, RoundsAroundEveryValueAndEveryMidpoint) {
  const auto& values = this->reference_.values();
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const double middle = (values[i] + values[i + 1]) / 2;
    for (const double x : {values[i], middle}) {
      this->template ExpectRoundsAround<double>(x);
      this->template ExpectRoundsAround<float>(x);
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(SmallFloatTest, RoundsRandomFloatBits) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    this->ExpectRounds(x);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(SmallFloatTest, RoundsRandomDoublesNearItsRange) {
  using Format = typename TypeParam::Format;
  std::mt19937_64 random(2);
  const int low = Format::kMinExponent - Format::kMantissaBits - 3;
  const int span = Format::kBias + 4 - low;
  for (int i = 0; i < 2'000'000; ++i) {
    const double significand = static_cast<double>(random() >> 11);
    const int exponent = low + static_cast<int>(random() % span);
    this->ExpectRounds(std::ldexp(significand, exponent - 52));
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(SmallFloatTest, AvoidsDoubleRoundingOfDoubles) {
  using Format = typename TypeParam::Format;
  // Just above the midpoint of 1 and its successor, but too close for float:
  // float rounds to the midpoint, a tie that goes to the even 1.
  const double middle = 1 + std::ldexp(1, -Format::kMantissaBits - 1);
  const double above = middle + std::ldexp(1, -40);
  ASSERT_EQ(static_cast<float>(above), static_cast<float>(middle));
  EXPECT_EQ(TypeParam(static_cast<float>(above)).bits(), TypeParam(1.0).bits());
  EXPECT_EQ(TypeParam(above).bits(), TypeParam(1.0).bits() + 1);
  EXPECT_EQ(TypeParam(middle).bits(), TypeParam(1.0).bits());
}

TYPED_TEST(SmallFloatTest, RoundsIntegersOnce) {
  using Format = typename TypeParam::Format;
  std::mt19937_64 random(3);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto x = static_cast<int64_t>(random()) >> (random() % 64);
    // Uses the 64 significant bits of an x87 long double where available; a
    // double would round first.
    const double nearest = static_cast<double>(x);
    const auto error = x - static_cast<int64_t>(std::min(nearest, 0x1p62));
    if (std::fabs(nearest) <= 0x1p62 && error == 0) {
      ASSERT_EQ(TypeParam(x).bits(), this->reference_.Round(nearest)) << x;
    } else if (std::fabs(nearest) < 0x1p62) {
      // Moves the double off a tie toward the integer.
      const double toward = error > 0 ? INFINITY : -INFINITY;
      const double pushed = std::nextafter(nearest, toward);
      ASSERT_EQ(TypeParam(x).bits(), this->reference_.Round(pushed)) << x;
    }
  }
  for (int shift = 53; shift < 62; ++shift) {
    // A tie in the format plus one; only exact conversion rounds up.
    const int64_t tie = (int64_t{1} << shift) +
                        (int64_t{1} << (shift - Format::kMantissaBits - 1));
    const double value = std::ldexp(1, shift);
    EXPECT_EQ(TypeParam(tie).bits(), TypeParam(value).bits());
    const bool overflows = !TypeParam(value).IsFinite();
    EXPECT_EQ(TypeParam(tie + 1).bits(),
              TypeParam(value).bits() + (overflows ? 0 : 1));
    EXPECT_EQ(TypeParam(-tie - 1).bits(), (-TypeParam(tie + 1)).bits());
  }
  EXPECT_EQ(TypeParam(INT64_MIN).bits(), TypeParam(-0x1p63).bits());
  EXPECT_EQ(TypeParam(UINT64_MAX).bits(), TypeParam(0x1p64).bits());
  EXPECT_EQ(TypeParam(int8_t{-3}).bits(), TypeParam(-3.0f).bits());
}

TYPED_TEST(SmallFloatTest, NansStayNansWithTheirSign) {
  for (const uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0x7fbfffffu, 0x7f801000u}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const auto x = std::bit_cast<float>(bits | sign);
      for (const TypeParam y : {TypeParam(x), TypeParam::Saturated(x)}) {
        EXPECT_TRUE(y.IsNan());
        EXPECT_EQ(y.SignBit(), sign != 0);
        EXPECT_EQ(y.bits() & TypeParam::Format::kQuietNan,
                  TypeParam::Format::kQuietNan);
      }
    }
  }
  const auto signalling = std::bit_cast<double>(0xfff0000000000001u);
  EXPECT_TRUE(TypeParam(signalling).IsNan());
  EXPECT_TRUE(TypeParam(signalling).SignBit());
}

TYPED_TEST(SmallFloatTest, InfinitiesAndOverflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  const double max = static_cast<double>(TypeParam::Max());
  for (const double x : {static_cast<double>(infinity), 1e300, max * 2}) {
    EXPECT_EQ(TypeParam(x).bits(), TypeParam::Format::kOverflow);
    EXPECT_EQ((-TypeParam(-x)).bits(), TypeParam::Format::kOverflow);
    EXPECT_EQ(TypeParam::Saturated(x).bits(), TypeParam::Max().bits());
    EXPECT_EQ(TypeParam::Saturated(-x).bits(), (-TypeParam::Max()).bits());
  }
  EXPECT_EQ(TypeParam(infinity).bits(), TypeParam::Format::kOverflow);
  EXPECT_EQ(TypeParam(infinity).IsInfinite(), TypeParam::Format::kHasInfinity);
  EXPECT_EQ(TypeParam(infinity).IsNan(), !TypeParam::Format::kHasInfinity);
}

TYPED_TEST(SmallFloatTest, ComparesAndPrintsByValue) {
  const TypeParam zero(0.0f);
  EXPECT_EQ(zero, -zero);
  EXPECT_NE(zero.bits(), (-zero).bits());
  EXPECT_NE(TypeParam::QuietNan(), TypeParam::QuietNan());
  EXPECT_LT(TypeParam(-2.0f), TypeParam(1.5f));
  EXPECT_GT(TypeParam::MinNormal(), TypeParam::MinSubnormal());
  EXPECT_GT(TypeParam::MinSubnormal(), zero);
  std::ostringstream out;
  out << TypeParam(-1.5f);
  EXPECT_EQ(out.str(), "-1.5");
}

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

// clang 14 has _Float16 only on processors with native support.
#if defined(__FLT16_MANT_DIG__) && !defined(__clang__)

#if defined(__aarch64__)  // GCC 12 has no _Float16 there in C++.
using CompilerFloat16 = __fp16;
#else
using CompilerFloat16 = _Float16;
#endif

void ExpectAsCompiler(float x) {
  const auto expected = static_cast<CompilerFloat16>(x);
  ASSERT_EQ(F16(x).bits(), std::bit_cast<uint16_t>(expected))
      << std::hexfloat << x;
}

TEST(Float16Test, DecodesEveryPatternLikeCompiler) {
  for (int i = 0; i < 1 << 16; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const auto expected =
        static_cast<float>(std::bit_cast<CompilerFloat16>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(F16::FromBits(bits))),
              std::bit_cast<uint32_t>(expected))
        << i;
  }
}

TEST(Float16Test, EncodesRandomFloatsLikeCompiler) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 4'000'000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    ExpectAsCompiler(std::bit_cast<float>(bits));
    // Every other value is near the format's range.
    const uint32_t near = (bits & 0x87ffffff) | 0x38000000;
    ExpectAsCompiler(std::bit_cast<float>(near));
    if (HasFatalFailure()) return;
  }
}

TEST(Float16Test, EncodesRandomDoublesLikeCompiler) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 2'000'000; ++i) {
    const double significand =
        static_cast<double>(static_cast<int64_t>(random())) / 0x1p63;
    const double x =
        std::ldexp(significand, static_cast<int>(random() % 45) - 27);
    ASSERT_EQ(F16(x).bits(),
              std::bit_cast<uint16_t>(static_cast<CompilerFloat16>(x)))
        << std::hexfloat << x;
  }
}

#endif

TEST(Bfloat16Test, HasTheConstantsOfBfloat16) {
  EXPECT_EQ(static_cast<float>(BF16::Max()), 0x1.fep127f);
  EXPECT_EQ(static_cast<float>(BF16::MinNormal()), 0x1p-126f);
  EXPECT_EQ(static_cast<float>(BF16::MinSubnormal()), 0x1p-133f);
  EXPECT_EQ(BF16::Infinity().bits(), 0x7f80);
  EXPECT_EQ(BF16::QuietNan().bits(), 0x7fc0);
  EXPECT_EQ(static_cast<float>(BF16(3.14159f)), 3.140625f);
}

TEST(Bfloat16Test, IsTheUpperHalfOfAFloat) {
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    const BF16 x = BF16::FromBits(static_cast<uint16_t>(i));
    const uint32_t quiet = x.IsNan() ? 0x400000 : 0;
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(x)), i << 16 | quiet);
  }
}

TEST(Bfloat16Test, TheLargestFloatOverflows) {
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(BF16(kMax), BF16::Infinity());
  EXPECT_EQ(BF16::Saturated(kMax), BF16::Max());
}

TEST(Float8Test, E4M3HasTheConstantsOfTheSpecification) {
  EXPECT_EQ(static_cast<float>(F8E4M3::Max()), 448.0f);
  EXPECT_EQ(F8E4M3::Max().bits(), 0x7e);
  EXPECT_EQ(static_cast<float>(F8E4M3::MinNormal()), 0x1p-6f);
  EXPECT_EQ(static_cast<float>(F8E4M3::MinSubnormal()), 0x1p-9f);
  EXPECT_EQ(F8E4M3::QuietNan().bits(), 0x7f);
  for (int i = 0; i < 256; ++i) {
    const F8E4M3 x = F8E4M3::FromBits(static_cast<uint8_t>(i));
    EXPECT_EQ(x.IsNan(), i == 0x7f || i == 0xff);
    EXPECT_FALSE(x.IsInfinite());
  }
}

TEST(Float8Test, E4M3RoundsPastTheTieAt464ToNan) {
  EXPECT_EQ(F8E4M3(449.0f), F8E4M3::Max());
  EXPECT_EQ(F8E4M3(464.0f), F8E4M3::Max());
  EXPECT_EQ(F8E4M3(std::nextafter(464.0f, 500.0f)).bits(), 0x7f);
  EXPECT_EQ(F8E4M3(std::nextafter(464.0, 500.0)).bits(), 0x7f);
  EXPECT_EQ(F8E4M3(-480.0f).bits(), 0xff);
  EXPECT_EQ(F8E4M3(-INFINITY).bits(), 0xff);
  EXPECT_EQ(F8E4M3::Saturated(-480.0f), -F8E4M3::Max());
  EXPECT_EQ(F8E4M3::Saturated(INFINITY), F8E4M3::Max());
  EXPECT_TRUE(F8E4M3::Saturated(NAN).IsNan());
}

TEST(Float8Test, E5M2HasTheConstantsOfTheSpecification) {
  EXPECT_EQ(static_cast<float>(F8E5M2::Max()), 57344.0f);
  EXPECT_EQ(F8E5M2::Max().bits(), 0x7b);
  EXPECT_EQ(static_cast<float>(F8E5M2::MinNormal()), 0x1p-14f);
  EXPECT_EQ(static_cast<float>(F8E5M2::MinSubnormal()), 0x1p-16f);
  EXPECT_EQ(F8E5M2::Infinity().bits(), 0x7c);
  for (int i = 0; i < 256; ++i) {
    const F8E5M2 x = F8E5M2::FromBits(static_cast<uint8_t>(i));
    EXPECT_EQ(x.IsNan(), (i & 0x7f) > 0x7c);
    EXPECT_EQ(x.IsInfinite(), (i & 0x7f) == 0x7c);
  }
}

TEST(Float8Test, E5M2OverflowsToInfinity) {
  EXPECT_EQ(F8E5M2(std::nextafter(61440.0f, 0.0f)), F8E5M2::Max());
  EXPECT_EQ(F8E5M2(61440.0f), F8E5M2::Infinity());
  EXPECT_EQ(F8E5M2(-1e30f), -F8E5M2::Infinity());
}

TEST(Float8Test, E5M2IsTheUpperByteOfAnF16) {
  for (int i = 0; i < 256; ++i) {
    const F8E5M2 x = F8E5M2::FromBits(static_cast<uint8_t>(i));
    if (x.IsNan()) continue;
    EXPECT_EQ(static_cast<float>(x),
              static_cast<float>(F16::FromBits(static_cast<uint16_t>(i << 8))));
  }
}

}  // namespace

}  // namespace tessera
