#include "offload/codec/half_conversion.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {
namespace {

constexpr DType kHalves[] = {DType::kF16, DType::kBF16};
constexpr FloatOverflow kOverflows[] = {FloatOverflow::kInfinityOrNan,
                                        FloatOverflow::kSaturate};

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Every upper half, with lower halves around the ties of both types, and some
// random ones.
Bytes HardFloats() {
  std::vector<uint32_t> bits;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u,
          0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu}) {
      bits.push_back(upper << 16 | lower);
    }
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'003; ++i) {
    bits.push_back(static_cast<uint32_t>(random()));
  }
  return BytesOf(bits);
}

void ExpectSame(DType from, const Bytes& source, DType to,
                FloatOverflow overflow) {
  const size_t bytes = source.size() / static_cast<size_t>(SizeInBytes(from)) *
                       static_cast<size_t>(SizeInBytes(to));
  Bytes expected(bytes), got(bytes);
  TESSERA_ASSERT_OK(Convert(from, source, to, expected, overflow));
  TESSERA_ASSERT_OK(ConvertFloats(from, source, to, got, overflow));
  ASSERT_TRUE(got == expected)
      << from << " to " << to << ", " << source.size() << " bytes";
}

TEST(HalfConversionTest, MatchesConvertOnEveryInstructionSet) {
  const Bytes floats = HardFloats();
  const Bytes patterns = AllPatterns();
  ForEachInstructionSet([&] {
    for (const DType half : kHalves) {
      for (const FloatOverflow overflow : kOverflows) {
        ExpectSame(DType::kF32, floats, half, overflow);
        ExpectSame(half, patterns, DType::kF32, overflow);
      }
    }
  });
}

TEST(HalfConversionTest, AcceptsEveryLengthAtEveryAddress) {
  const Bytes floats = HardFloats();
  for (const DType half : kHalves) {
    for (size_t count = 0; count < 70; ++count) {
      for (const size_t shift : {0, 1, 2, 3}) {
        const auto source = std::span(floats).subspan(shift, 4 * count);
        Bytes halves(2 * count + 3 * shift), same(2 * count);
        const auto target = std::span(halves).subspan(shift, 2 * count);
        TESSERA_ASSERT_OK(ConvertFloats(DType::kF32, source, half, target));
        TESSERA_ASSERT_OK(Convert(DType::kF32, source, half, same));
        ASSERT_EQ(Bytes(target.begin(), target.end()), same);
        for (size_t i = 0; i < shift; ++i) {
          ASSERT_EQ(halves[i], std::byte{0});
          ASSERT_EQ(halves[shift + 2 * count + i], std::byte{0});
        }
        Bytes wide(4 * count + shift), again(4 * count);
        TESSERA_ASSERT_OK(ConvertFloats(half, target, DType::kF32,
                                        std::span(wide).subspan(shift)));
        TESSERA_ASSERT_OK(Convert(half, target, DType::kF32, again));
        ASSERT_EQ(Bytes(wide.begin() + static_cast<int64_t>(shift), wide.end()),
                  again);
      }
    }
  }
}

TEST(HalfConversionTest, FindsAnInfinityAnywhere) {
  const Bytes patterns = AllPatterns();
  ForEachInstructionSet([&] {
    for (const DType half : kHalves) {
      const int infinity = half == DType::kF16 ? 0x7c00 : 0x7f80;
      for (size_t i = 0; i < 65536; ++i) {
        ASSERT_EQ(HasInfinity(half, std::span(patterns).subspan(2 * i, 2)),
                  (i & 0x7fff) == static_cast<size_t>(infinity))
            << i;
      }
      // Finite values only, then one infinity.
      for (size_t count = 0; count < 150; ++count) {
        Bytes halves(2 * count + 1, std::byte{0x7d});
        const auto span = std::span(halves).subspan(1);
        ASSERT_FALSE(HasInfinity(half, span));
        for (size_t at = 0; at < count; ++at) {
          Bytes one = halves;
          one[2 * at + 1] = static_cast<std::byte>(infinity);
          one[2 * at + 2] = static_cast<std::byte>(infinity >> 8 | at % 2 << 7);
          ASSERT_TRUE(HasInfinity(half, std::span(one).subspan(1)))
              << at << " of " << count;
        }
      }
    }
  });
}

TEST(HalfConversionTest, ForwardsOtherTypesToConvert) {
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      const Bytes source(static_cast<size_t>(8 * SizeInBytes(from)),
                         std::byte{1});
      ExpectSame(from, source, to, FloatOverflow::kSaturate);
    }
  }
  Bytes target(7);
  EXPECT_THAT(
      ConvertFloats(DType::kF32, Bytes(16), DType::kBF16, target),
      StatusIs(absl::StatusCode::kInvalidArgument,
               testing::HasSubstr("target of 7 bytes does not hold 4")));
  EXPECT_THAT(ConvertFloats(DType::kF32, Bytes(15), DType::kBF16, target),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::offload
