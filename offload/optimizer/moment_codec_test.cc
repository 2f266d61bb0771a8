#include "offload/optimizer/testing/moment_codec.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/small_float.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/dynamic_map.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/testing/step_state.h"

namespace tessera::offload {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

struct Stored {
  Stored(const MomentFormat& format, size_t size)
      : bytes(static_cast<size_t>(
            *MomentBytes(format, static_cast<int64_t>(size)))),
        span(*MomentSpan::Over(format, static_cast<int64_t>(size), bytes)) {}
  Stored(const Stored&) = delete;

  uint8_t code(size_t i) const { return static_cast<uint8_t>(span.values[i]); }
  std::vector<float> Read(MomentSign sign) const {
    std::vector<float> values(static_cast<size_t>(span.size));
    EXPECT_THAT(ReadMoments(span, sign, values), IsOk());
    return values;
  }

  std::vector<std::byte> bytes;
  MomentSpan span;
};

// Values over 12 decades, zeros and both signs.
std::vector<float> Mixture(size_t size, MomentSign sign, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> exponent(-9, 3);
  std::vector<float> values(size);
  for (float& value : values) {
    value = random() % 16 == 0 ? 0.0f : std::pow(10.0f, exponent(random));
    if (sign == MomentSign::kSigned && random() % 2 == 0) value = -value;
  }
  return values;
}

// The code of the nearest value in the map, by search.
template <bool kSigned>
int Nearest(double x) {
  int best = 0;
  for (int code = 1; code < 256; ++code) {
    const double distance = std::fabs(DynamicMap<kSigned>::Value(code) - x);
    if (distance < std::fabs(DynamicMap<kSigned>::Value(best) - x)) best = code;
  }
  return best;
}

template <bool kSigned>
void ExpectNearestCodes(const std::vector<float>& values,
                        const MomentFormat& format) {
  const auto sign = kSigned ? MomentSign::kSigned : MomentSign::kUnsigned;
  Stored stored(format, values.size());
  ASSERT_THAT(WriteMoments(values, sign, stored.span), IsOk());
  const std::vector<float> read = stored.Read(sign);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t block = i / static_cast<size_t>(format.block);
    const double largest = stored.span.largest[block];
    const double x = values[i] / largest;
    const int code = stored.code(i);
    int nearest = Nearest<kSigned>(x);
    // A positive second moment stays positive.
    if (!kSigned && values[i] > 0 && nearest == 0) nearest = 1;
    const double value = DynamicMap<kSigned>::Value(code);
    // Ties may go either way, within the rounding of f32.
    EXPECT_LE(std::fabs(value - x),
              std::fabs(DynamicMap<kSigned>::Value(nearest) - x) +
                  1e-6 * std::fabs(x))
        << values[i] << " of " << largest << " got " << code;
    EXPECT_EQ(read[i],
              DynamicMap<kSigned>::Value(code) * stored.span.largest[block]);
  }
}

TEST(Blockwise8, TakesTheNearestValueOfTheMap) {
  for (int64_t block : {64, 256, 2048}) {
    ForEachInstructionSet([&] {
      ExpectNearestCodes<true>(Mixture(3000, MomentSign::kSigned, 1),
                               MomentFormat::Blockwise8(block));
      ExpectNearestCodes<false>(Mixture(3000, MomentSign::kUnsigned, 2),
                                MomentFormat::Blockwise8(block));
    });
  }
}

TEST(Blockwise8, HasTheSameBitsForEveryInstructionSet) {
  for (MomentSign sign : {MomentSign::kSigned, MomentSign::kUnsigned}) {
    for (size_t size = 1; size < 200; ++size) {
      const std::vector<float> values = Mixture(size, sign, size);
      std::vector<std::byte> bytes;
      std::vector<float> read;
      ForEachInstructionSet([&] {
        Stored stored(MomentFormat::Blockwise8(64), size);
        ASSERT_THAT(WriteMoments(values, sign, stored.span), IsOk());
        if (bytes.empty()) {
          bytes = stored.bytes;
          read = stored.Read(sign);
        }
        EXPECT_EQ(stored.bytes, bytes);
        EXPECT_EQ(stored.Read(sign), read);
      });
    }
  }
}

TEST(Blockwise8, RoundTripsEveryCode) {
  for (MomentSign sign : {MomentSign::kSigned, MomentSign::kUnsigned}) {
    ForEachInstructionSet([&] {
      for (float largest : {1.0f, 0.3f, 1e30f, 3.4e38f, 1e-30f, 1e-37f}) {
        Stored first(MomentFormat::Blockwise8(256), 256);
        first.span.largest[0] = largest;
        for (size_t i = 0; i < 256; ++i) {
          first.span.values[i] = static_cast<std::byte>(i);
        }
        Stored second(MomentFormat::Blockwise8(256), 256);
        ASSERT_THAT(WriteMoments(first.Read(sign), sign, second.span), IsOk());
        if (largest > 1e-31f) {  // Otherwise the smallest are subnormal.
          EXPECT_EQ(first.bytes, second.bytes) << largest;
        } else {
          EXPECT_EQ(second.Read(sign)[255], largest);
        }
      }
    });
  }
}

TEST(Blockwise8, KeepsPositiveSecondMomentsPositive) {
  ForEachInstructionSet([] {
    std::vector<float> values(64, 1e-30f);
    values[0] = 1;
    values[1] = 0;
    Stored stored(MomentFormat::Blockwise8(64), 64);
    ASSERT_THAT(WriteMoments(values, MomentSign::kUnsigned, stored.span),
                IsOk());
    const std::vector<float> read = stored.Read(MomentSign::kUnsigned);
    EXPECT_EQ(read[0], 1);
    EXPECT_EQ(read[1], 0);
    for (size_t i = 2; i < 64; ++i) EXPECT_NEAR(read[i], 3.25e-7, 1e-12);
  });
}

TEST(Blockwise8, KeepsBlocksOfZerosAndSubnormals) {
  ForEachInstructionSet([] {
    for (MomentSign sign : {MomentSign::kSigned, MomentSign::kUnsigned}) {
      Stored zeros(MomentFormat::Blockwise8(64), 64);
      ASSERT_THAT(WriteMoments(std::vector<float>(64), sign, zeros.span),
                  IsOk());
      EXPECT_EQ(zeros.Read(sign), std::vector<float>(64));
      const float smallest = std::numeric_limits<float>::denorm_min();
      Stored tiny(MomentFormat::Blockwise8(64), 64);
      ASSERT_THAT(
          WriteMoments(std::vector<float>(64, smallest), sign, tiny.span),
          IsOk());
      EXPECT_EQ(tiny.Read(sign), std::vector<float>(64, smallest));
    }
  });
}

TEST(Blockwise8, NonFiniteValueMakesBlockNan) {
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(),
                       std::bit_cast<float>(0xffc12345u)};
  ForEachInstructionSet([&] {
    for (float value : bad) {
      for (size_t at = 64; at < 128; ++at) {
        std::vector<float> values(192, 1.0f);
        values[at] = value;
        Stored stored(MomentFormat::Blockwise8(64), 192);
        ASSERT_THAT(WriteMoments(values, MomentSign::kSigned, stored.span),
                    IsOk());
        const std::vector<float> read = stored.Read(MomentSign::kSigned);
        for (size_t i = 0; i < 192; ++i) {
          if (i / 64 != 1) {
            ASSERT_EQ(read[i], 1.0f);
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), 0x7fc00000u);
          }
        }
      }
    }
  });
}

TEST(Codec, RoundsToBf16LikeType) {
  std::mt19937_64 random(3);
  std::vector<float> values = Mixture(1003, MomentSign::kSigned, 4);
  for (int i = 0; i < 500; ++i) {
    const auto any = std::bit_cast<float>(static_cast<uint32_t>(random()));
    values.push_back(std::isnan(any) ? 1.0f : any);
  }
  ForEachInstructionSet([&] {
    Stored stored(MomentFormat::BF16(), values.size());
    ASSERT_THAT(WriteMoments(values, MomentSign::kSigned, stored.span), IsOk());
    const std::vector<float> read = stored.Read(MomentSign::kSigned);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(read[i], static_cast<float>(BF16(values[i])));
    }
  });
}

TEST(Codec, CopiesF32) {
  const std::vector<float> values = Mixture(77, MomentSign::kSigned, 5);
  Stored stored(MomentFormat::F32(), values.size());
  TESSERA_ASSERT_OK(WriteMoments(values, MomentSign::kSigned, stored.span));
  EXPECT_EQ(stored.Read(MomentSign::kSigned), values);
}

TEST(Codec, RejectsOtherLengthsAndF64) {
  Stored stored(MomentFormat::BF16(), 4);
  std::vector<float> values(5, 1.0f);
  EXPECT_THAT(WriteMoments(values, MomentSign::kSigned, stored.span),
              StatusIs(kInvalid, ::testing::HasSubstr("5 values for 4")));
  EXPECT_THAT(ReadMoments(stored.span, MomentSign::kSigned, values),
              StatusIs(kInvalid));
  EXPECT_EQ(stored.bytes, std::vector<std::byte>(8));
  Stored wide(MomentFormat::F64(), 5);
  EXPECT_THAT(ReadMoments(wide.span, MomentSign::kSigned, values),
              StatusIs(kInvalid, ::testing::HasSubstr("f64 moments")));
}

}  // namespace
}  // namespace tessera::offload
