#include "base/dtype/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_matchers.h"
#include "base/testing/float_reference.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

using Int128 = __int128_t;

template <typename T>
T FromRandom(std::mt19937_64& random) {
  const uint64_t bits = random();
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

// Random bit patterns, random integers of every size, and edge cases.
template <typename T>
std::vector<T> Samples() {
  std::mt19937_64 random(static_cast<uint64_t>(kDTypeOf<T>));
  std::vector<T> values;
  for (int i = 0; i < 20'001; ++i) values.push_back(FromRandom<T>(random));
  const double edges[] = {
      0,       -0.0,     0.5,       -0.5,    0.999999,    1,   -1,    127,
      127.99,  128,      -128,      -128.99, -129,        255, 255.5, 256,
      -0x1p31, 0x1p31,   0x1p63,    -0x1p63, 0x1p64,      464, 65520, 1e30,
      1e300,   INFINITY, -INFINITY, NAN,     2147483647.5};
  for (double x : edges) values.push_back(ConvertValue<T>(x));
  for (int64_t x : {INT64_MAX, INT64_MIN, int64_t{INT32_MAX}, (1l << 53) + 1,
                    (1l << 60) + (1l << 52) + 1, (1l << 24) + 1}) {
    values.push_back(ConvertValue<T>(x));
  }
  for (int i = 0; i < 20'000; ++i) {
    const auto x = static_cast<int64_t>(random()) >> (random() % 64);
    values.push_back(ConvertValue<T>(x));
  }
  return values;
}

template <typename T>
double ToDouble(T value) {
  return static_cast<double>(value);
}

// The reference, in 128 bits: `From`'s value rounded toward zero and clamped.
template <typename To, typename From>
To ExpectedInteger(From value) {
  Int128 wide = 0;
  if constexpr (std::is_integral_v<From>) {
    wide = value;
  } else {
    const double x = ToDouble(value);
    if (std::isnan(x)) return 0;
    wide = static_cast<Int128>(std::fmin(std::fmax(x, -0x1p100), 0x1p100));
  }
  if (wide > std::numeric_limits<To>::max()) {
    return std::numeric_limits<To>::max();
  }
  if (wide < std::numeric_limits<To>::min()) {
    return std::numeric_limits<To>::min();
  }
  return static_cast<To>(wide);
}

// A double that every narrower format rounds as it would round `value`. For an
// integer that no double represents, the last bit breaks ties.
template <typename From>
double Oracle(From value) {
  const double nearest = ToDouble(value);
  if constexpr (std::is_same_v<From, int64_t>) {
    const Int128 error = Int128{value} - static_cast<Int128>(nearest);
    if (error == 0) return nearest;
    return std::nextafter(nearest, error > 0 ? INFINITY : -INFINITY);
  }
  return nearest;
}

template <typename To, typename From>
void ExpectValue(From value, To actual) {
  if constexpr (std::is_same_v<To, From>) {
    ASSERT_EQ(std::memcmp(&value, &actual, sizeof(To)), 0);
  } else if constexpr (std::is_integral_v<To>) {
    ASSERT_EQ(actual, (ExpectedInteger<To>(value))) << ToDouble(value);
  } else if (std::isnan(ToDouble(value))) {
    ASSERT_TRUE(std::isnan(ToDouble(actual)));
    ASSERT_EQ(std::signbit(ToDouble(actual)), std::signbit(ToDouble(value)));
  } else if constexpr (kIsSmallFloat<To>) {
    using Format = typename To::Format;
    static const FloatReference reference(
        {.exponent_bits = Format::kExponentBits,
         .mantissa_bits = Format::kMantissaBits,
         .has_infinity = Format::kHasInfinity});
    ASSERT_EQ(actual.bits(), reference.Round(Oracle(value))) << Oracle(value);
  } else if constexpr (std::is_integral_v<From>) {
    ASSERT_EQ(actual, static_cast<To>(value));
  } else {
    const auto expected = static_cast<To>(ToDouble(value));
    ASSERT_EQ(std::memcmp(&actual, &expected, sizeof(To)), 0);
  }
}

template <typename From, typename To>
void ExpectConvertsAllSamples() {
  const std::vector<From> source = Samples<From>();
  std::vector<To> target(source.size());
  TESSERA_ASSERT_OK(Convert(kDTypeOf<From>, std::as_bytes(std::span(source)),
                            kDTypeOf<To>,
                            std::as_writable_bytes(std::span(target))));
  for (size_t i = 0; i < source.size(); ++i) {
    ExpectValue<To>(source[i], target[i]);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class ConvertPairTest : public ::testing::TestWithParam<DType> {};

TEST_P(ConvertPairTest, MatchesOracleForEveryType) {
  DispatchDType(GetParam(), [&]<typename From>(std::type_identity<From>) {
    for (DType to : kAllDTypes) {
      SCOPED_TRACE(DTypeName(to));
      DispatchDType(to, [&]<typename To>(std::type_identity<To>) {
        ExpectConvertsAllSamples<From, To>();
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(From, ConvertPairTest, ::testing::ValuesIn(kAllDTypes),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param));
                         });

// Vector code handles tails and unaligned spans separately.
TEST(ConvertTest, MatchesElementwiseForEveryLengthAndAlignment) {
  std::mt19937_64 random(5);
  std::vector<std::byte> source(600), target(600);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  for (const auto& [from, to] : {std::pair(DType::kF32, DType::kBF16),
                                 {DType::kF32, DType::kF16},
                                 {DType::kBF16, DType::kF32},
                                 {DType::kF16, DType::kF32},
                                 {DType::kF32, DType::kF8E4M3},
                                 {DType::kF64, DType::kF16}}) {
    const auto a = static_cast<size_t>(SizeInBytes(from));
    const auto b = static_cast<size_t>(SizeInBytes(to));
    for (size_t n = 0; n <= 67; ++n) {
      for (size_t offset : {0, 1, 2, 3}) {
        std::fill(target.begin(), target.end(), std::byte{0xa5});
        const auto in = std::span(source).subspan(offset, n * a);
        TESSERA_ASSERT_OK(
            Convert(from, in, to, std::span(target).subspan(offset, n * b)));
        EXPECT_EQ(target[offset + n * b], std::byte{0xa5});
        for (size_t i = 0; i < n; ++i) {
          std::byte one[8];
          TESSERA_ASSERT_OK(
              Convert(from, in.subspan(i * a, a), to, std::span(one).first(b)));
          ASSERT_EQ(std::memcmp(one, &target[offset + i * b], b), 0);
        }
      }
    }
  }
}

TEST(ConvertTest, SaturatesOnlyWhenAsked) {
  const float source[] = {1e9f, -INFINITY, 3, NAN};
  F8E4M3 plain[4], saturated[4];
  TESSERA_ASSERT_OK(Convert(DType::kF32, std::as_bytes(std::span(source)),
                            DType::kF8E4M3,
                            std::as_writable_bytes(std::span(plain))));
  TESSERA_ASSERT_OK(Convert(
      DType::kF32, std::as_bytes(std::span(source)), DType::kF8E4M3,
      std::as_writable_bytes(std::span(saturated)), FloatOverflow::kSaturate));
  EXPECT_TRUE(plain[0].IsNan() && plain[1].IsNan() && plain[3].IsNan());
  EXPECT_EQ(saturated[0], F8E4M3::Max());
  EXPECT_EQ(saturated[1], -F8E4M3::Max());
  EXPECT_EQ(saturated[2], F8E4M3(3));
  EXPECT_TRUE(saturated[3].IsNan());
}

TEST(ConvertTest, SaturatesDoubleToFloat) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr auto kSaturate = FloatOverflow::kSaturate;
  EXPECT_EQ(ConvertValue<float>(1e300), INFINITY);
  EXPECT_EQ((ConvertValue<float, kSaturate>(1e300)), kMax);
  EXPECT_EQ((ConvertValue<float, kSaturate>(double{-INFINITY})), -kMax);
  EXPECT_TRUE(std::isnan(ConvertValue<float, kSaturate>(double{NAN})));
  static_assert(ConvertValue<int8_t>(300.7f) == 127);
}

TEST(ConvertTest, PreservesNanSignAndPayload) {
  const auto nan = std::bit_cast<float>(0xffa12345u);  // signalling
  const double wide = ConvertValue<double>(nan);
  EXPECT_EQ(std::bit_cast<uint64_t>(wide), 0xfffc2468a0000000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(ConvertValue<float>(wide)), 0xffe12345u);
}

absl::Status TryConvert(DType from, size_t source_bytes, DType to,
                        size_t target_bytes) {
  const std::vector<std::byte> source(source_bytes);
  std::vector<std::byte> target(target_bytes, std::byte{0x77});
  absl::Status status = Convert(from, source, to, target);
  for (std::byte b : target) EXPECT_EQ(b, std::byte{0x77});
  return status;
}

TEST(ConvertTest, RejectsMismatchedSizesWithoutWriting) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(TryConvert(DType::kF32, 7, DType::kF16, 2),
              StatusIs(kInvalid, HasSubstr("7 bytes is not a whole number of "
                                           "f32 elements of 4 bytes")));
  EXPECT_THAT(
      TryConvert(DType::kF32, 8, DType::kF16, 6),
      StatusIs(kInvalid, HasSubstr("target of 6 bytes does not hold 2 "
                                   "f16 elements; give exactly 2 * 2")));
  EXPECT_THAT(TryConvert(DType::kF32, 8, DType::kF16, 5),
              StatusIs(kInvalid, HasSubstr("target of 5 bytes")));
  EXPECT_THAT(TryConvert(static_cast<DType>(77), 8, DType::kF16, 4),
              StatusIs(kInvalid, HasSubstr("dtype number 77 is not valid")));
  EXPECT_THAT(TryConvert(DType::kF16, 8, static_cast<DType>(10), 4),
              StatusIs(kInvalid, HasSubstr("expected 0 to 9")));
}

TEST(ConvertTest, RejectsOverlapButAcceptsAdjacentSpans) {
  std::vector<std::byte> memory(12);
  const std::span<std::byte> bytes(memory);
  EXPECT_THAT(
      Convert(DType::kF32, bytes.first(8), DType::kBF16, bytes.subspan(7, 4)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overlap")));
  TESSERA_EXPECT_OK(
      Convert(DType::kF32, bytes.first(8), DType::kBF16, bytes.subspan(8, 4)));
}

TEST(ConvertTest, ConvertsEmptySpans) {
  TESSERA_EXPECT_OK(Convert(DType::kI64, {}, DType::kF8E5M2, {}));
}

}  // namespace
}  // namespace tessera
