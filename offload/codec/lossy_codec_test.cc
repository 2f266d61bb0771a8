#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/testing/float_reference.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/block_kernels.h"
#include "offload/codec/codecs.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

struct Case {
  const char* name;
  std::unique_ptr<Codec> (*make)();
  DType held;
  FloatReference::Layout layout;
  double first_refused;  // Rounds to more than the largest finite value.
};
const Case kCases[] = {
    {"fp16", MakeFp16Codec, DType::kF16, {5, 10, true}, 65520},
    {"bf16", MakeBf16Codec, DType::kBF16, {8, 7, true}, 0x1.ffp127},
};

class NarrowCodecTest : public ::testing::TestWithParam<Case> {
 protected:
  const std::unique_ptr<Codec> codec_ = GetParam().make();
};
INSTANTIATE_TEST_SUITE_P(, NarrowCodecTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// Every value of the encoded type, the midpoints between neighbours and the
// numbers next to them, in both signs.
std::vector<double> Hard(const FloatReference& reference) {
  std::vector<double> numbers;
  const auto& values = reference.values();
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    const double middle = (values[i] + values[i + 1]) / 2;
    numbers.push_back(values[i]);
    numbers.push_back(std::nextafter(middle, 0));
    // The last midpoint is out of range.
    if (i + 2 < values.size()) numbers.push_back(middle);
    if (i + 2 < values.size()) numbers.push_back(std::nextafter(middle, 1e300));
  }
  const size_t count = numbers.size();
  for (size_t i = 0; i < count; ++i) numbers.push_back(-numbers[i]);
  return numbers;
}

TEST_P(NarrowCodecTest, RoundsF64ToNearestEvenOnce) {
  const FloatReference reference(GetParam().layout);
  const std::vector<double> numbers = Hard(reference);
  const Bytes values = ArrayOf(DType::kF64, numbers);
  const Bytes back =
      Decoded(*codec_, DType::kF64, Encoded(*codec_, DType::kF64, values),
              values.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int bits = reference.Round(numbers[i]);
    const double magnitude =
        reference.values()[static_cast<size_t>(bits & ~reference.sign_bit())];
    const double expected = numbers[i] < 0 ? -magnitude : magnitude;
    ASSERT_EQ(ValueAt(DType::kF64, back, i), expected) << numbers[i];
  }
  EXPECT_LE(WorstShareOfBound(*codec_, DType::kF64, values), 1);
}

TEST_P(NarrowCodecTest, RoundsF32ToNearestEven) {
  const FloatReference reference(GetParam().layout);
  std::mt19937_64 random(1);
  std::vector<double> numbers;
  while (numbers.size() < 200000) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::fabs(value) < GetParam().first_refused) numbers.push_back(value);
  }
  const Bytes values = ArrayOf(DType::kF32, numbers);
  const Bytes back =
      Decoded(*codec_, DType::kF32, Encoded(*codec_, DType::kF32, values),
              values.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int bits = reference.Round(numbers[i]);
    ASSERT_EQ(std::fabs(ValueAt(DType::kF32, back, i)),
              reference.values()[size_t(bits & ~reference.sign_bit())])
        << numbers[i];
  }
  const double worst = WorstShareOfBound(*codec_, DType::kF32, values);
  EXPECT_LE(worst, 1);
  EXPECT_GT(worst, 0.9);  // The bound is tight.
}

TEST_P(NarrowCodecTest, HoldsEveryPatternOfItsType) {
  const Bytes patterns = AllPatterns();
  std::vector<double> numbers;
  for (size_t i = 0; i < 65536; ++i) {
    numbers.push_back(ValueAt(GetParam().held, patterns, i));
  }
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Bytes values = ArrayOf(dtype, numbers);
    const Bytes encoded = Encoded(*codec_, dtype, values);
    EXPECT_EQ(encoded.size(), 16 + 2 * 65536);
    const Bytes back = Decoded(*codec_, dtype, encoded, values.size());
    EXPECT_TRUE(back == values);  // NaNs too: they are quiet.
    EXPECT_TRUE(Encoded(*codec_, dtype, back) == encoded);
  }
}

TEST_P(NarrowCodecTest, RejectsFiniteValuesThatOverflow) {
  const double last = std::nextafter(GetParam().first_refused, 0);
  for (const double sign : {1.0, -1.0}) {
    std::vector<double> numbers(9000, HUGE_VAL);
    numbers[8000] = sign * last;
    Bytes encoded(16 + 2 * 9000);
    TESSERA_EXPECT_OK(
        codec_->Encode(DType::kF64, ArrayOf(DType::kF64, numbers), encoded));
    numbers[8000] = sign * GetParam().first_refused;
    EXPECT_THAT(
        codec_->Encode(DType::kF64, ArrayOf(DType::kF64, numbers), encoded),
        StatusIs(Code::kInvalidArgument,
                 AllOf(HasSubstr("element 8000 of 9000"),
                       HasSubstr("would become infinite"))));
  }
}

TEST_P(NarrowCodecTest, IsLosslessForTypesNotWider) {
  const Bytes patterns = AllPatterns();
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kI64}) {
    EXPECT_TRUE(codec_->IsLossless(dtype));
    EXPECT_TRUE(Decoded(*codec_, dtype, Encoded(*codec_, dtype, patterns),
                        patterns.size()) == patterns);
  }
}

TEST(NoneCodecTest, HoldsTheBytes) {
  const Bytes values = RandomBytes(4000, 1);
  const Bytes encoded = Encoded(*MakeNoneCodec(), DType::kF32, values);
  EXPECT_TRUE(Bytes(encoded.begin() + 16, encoded.end()) == values);
}

}  // namespace

// int8 and nf4 as codecs: sizes, errors, adversarial blocks, invalid input.

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16,
                             DType::kBF16};

std::unique_ptr<Codec> Make(int which) {
  if (which == 0) return MakeInt8Codec();
  return MakeNf4Codec(which == 1 ? Nf4Scales::kFloat : Nf4Scales::kDouble);
}

class QuantizeTest : public ::testing::TestWithParam<int> {
 protected:
  const std::unique_ptr<Codec> codec_ = Make(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, QuantizeTest, ::testing::Values(0, 1, 2),
                         [](const auto& info) {
                           return std::string(Make(info.param)->name());
                         });

TEST_P(QuantizeTest, KeepsItsBoundForRandomValuesOfAnySize) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (int round = 0; round < 60; ++round) {
    for (const DType dtype : kFloats) {
      const bool is_f16 = dtype == DType::kF16;
      const int exponent =
          int(random() % (is_f16 ? 30 : 240)) - (is_f16 ? 20 : 130);
      std::student_t_distribution<double> heavy(1 + double(random() % 5));
      std::vector<double> numbers(1 + random() % 40000);
      const double most = is_f16 ? 65504 : 3.38e38;
      for (double& x : numbers) {
        x = std::clamp(std::ldexp(heavy(random), exponent), -most, most);
      }
      const double share =
          WorstShareOfBound(*codec_, dtype, ArrayOf(dtype, numbers));
      EXPECT_LE(share, 1) << dtype << ", exponent " << exponent;
      worst = std::max(worst, share);
    }
  }
  EXPECT_GT(worst, 0.9);  // The bound is tight.
}

std::vector<std::vector<double>> Adversaries(DType dtype) {
  const double most = dtype == DType::kF16    ? 65504
                      : dtype == DType::kBF16 ? 0x1.fep127
                                              : double{0x1.fffffep127f};
  const double least = dtype == DType::kF16    ? 0x1p-24
                       : dtype == DType::kBF16 ? 0x1p-133
                                               : 0x1p-149;
  std::vector<std::vector<double>> arrays;
  arrays.push_back(std::vector<double>(1000, 0.0));
  arrays.push_back(std::vector<double>(1000, -0.0));
  arrays.push_back(std::vector<double>(1000, most));
  arrays.push_back(std::vector<double>(1000, -most));
  arrays.push_back(std::vector<double>(1000, least));
  std::vector<double> outlier(20000, 0.01);
  outlier[777] = -most;
  arrays.push_back(outlier);
  outlier[777] = least;
  outlier[19999] = 1;
  arrays.push_back(outlier);
  std::vector<double> ramp, tiny, large, alternating;
  for (int i = 0; i < 3000; ++i) {
    ramp.push_back(std::ldexp(1.0, -(i % 40)) * (i % 2 ? -1 : 1));
    tiny.push_back(least * (i % 300) * (i % 3 ? -1 : 1));
    large.push_back(most / 3000 * i);
    alternating.push_back(i / 64 % 2 ? 0 : most);
  }
  arrays.insert(arrays.end(), {ramp, tiny, large, alternating});
  return arrays;
}

TEST_P(QuantizeTest, KeepsItsBoundForAdversaries) {
  for (const DType dtype : kFloats) {
    int number = 0;
    for (const std::vector<double>& numbers : Adversaries(dtype)) {
      for (const size_t count : {size_t{1}, size_t{65}, numbers.size()}) {
        const std::vector<double> first(numbers.begin(),
                                        numbers.begin() + count);
        EXPECT_LE(WorstShareOfBound(*codec_, dtype, ArrayOf(dtype, first)), 1)
            << dtype << ", array " << number << ", " << count;
      }
      ++number;
    }
  }
}

TEST_P(QuantizeTest, SmallF64ValuesBecomeZeroWithinTheBound) {
  const Bytes values = ArrayOf(DType::kF64, {1e-300, -1e-46, 5e-324, 1e-40});
  EXPECT_LE(WorstShareOfBound(*codec_, DType::kF64, values), 1);
}

TEST_P(QuantizeTest, ReencodingIsIdempotent) {
  const bool may_drift = codec_->name() == "nf4_double";
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const double deviation : {1e-3, 0.02, 300.0}) {
      const Bytes values = NormalArray(dtype, 50003, deviation, 3);
      const Bytes encoded = Encoded(*codec_, dtype, values);
      const Bytes decoded = Decoded(*codec_, dtype, encoded, values.size());
      EXPECT_TRUE(Encoded(*codec_, dtype, decoded) == encoded || may_drift)
          << dtype << ", deviation " << deviation;
    }
  }
}

TEST_P(QuantizeTest, MatchesDocumentedSize) {
  for (const int64_t n : {0, 1, 31, 32, 33, 64, 65, 128, 16384, 16385}) {
    const auto up = [n](int64_t block) { return (n + block - 1) / block; };
    int64_t expected = 16 + n + 4 * up(128);
    const int64_t packed = n / 64 * 32 + std::min<int64_t>(n % 64, 32);
    if (GetParam() == 1) expected = 16 + packed + 4 * up(64);
    if (GetParam() == 2) expected = 16 + packed + up(64) + 8 * up(16384);
    for (const DType dtype : kFloats) {
      EXPECT_THAT(codec_->MaxEncodedBytes(dtype, n), IsOkAndHolds(expected));
      EXPECT_EQ(Encoded(*codec_, dtype, NormalArray(dtype, n, 0.02, 1)).size(),
                expected);
    }
  }
}

TEST_P(QuantizeTest, NamesFirstUnrepresentableValue) {
  std::vector<double> numbers(40000, 1.5);
  numbers[33333] = 1e39;
  numbers[33334] = std::nan("");
  Bytes encoded(1 << 20);
  EXPECT_THAT(
      codec_->Encode(DType::kF64, ArrayOf(DType::kF64, numbers), encoded),
      StatusIs(Code::kInvalidArgument,
               AllOf(HasSubstr("element 33333 of 40000, the f64 1e+39"),
                     HasSubstr("use lossless"))));
}

TEST_P(QuantizeTest, RejectsInvalidScales) {
  const Bytes values = NormalArray(DType::kF32, 20000, 0.02, 1);
  const Bytes encoded = Encoded(*codec_, DType::kF32, values);
  Bytes back(values.size());
  for (const float bad : {-1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t scale : {0, 1, 3}) {
      Bytes damaged = encoded;
      std::memcpy(&damaged[16 + 4 * scale], &bad, sizeof(bad));
      EXPECT_THAT(codec_->Decode(DType::kF32, damaged, back),
                  StatusIs(Code::kDataLoss, HasSubstr("scale")));
    }
  }
}

TEST_P(QuantizeTest, PreservesIntegers) {
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kI8}) {
    EXPECT_TRUE(codec_->IsLossless(dtype));
    const Bytes values = RandomBytes(4096, 1);
    EXPECT_TRUE(Decoded(*codec_, dtype, Encoded(*codec_, dtype, values),
                        values.size()) == values);
  }
  EXPECT_EQ(codec_->IsLossless(DType::kF8E4M3), GetParam() == 0);
}

// Independent of the kernels: checks every block in double precision.
TEST(Int8CodecTest, MatchesNearestStepOfReference) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> floats(128 * 500 + 50);
  for (float& value : floats) value = normal(random);
  Bytes values(floats.size() * 4);
  std::memcpy(values.data(), floats.data(), values.size());
  const auto codec = MakeInt8Codec();
  const Bytes back = Decoded(
      *codec, DType::kF32, Encoded(*codec, DType::kF32, values), values.size());
  for (size_t b = 0; b < floats.size(); b += 128) {
    const size_t end = std::min(floats.size(), b + 128);
    double largest = 0;
    for (size_t i = b; i < end; ++i) {
      largest = std::max(largest, std::fabs(double{floats[i]}));
    }
    for (size_t i = b; i < end; ++i) {
      const double exact = double{floats[i]} * 127 / largest;
      const double step = ValueAt(DType::kF32, back, i) * 127 / largest;
      // A whole step, and no farther away than the nearest one.
      ASSERT_NEAR(step, std::nearbyint(step), 1e-4);
      ASSERT_LE(std::fabs(step - exact), 0.5 + 1e-4);
    }
  }
}

TEST(Nf4CodecTest, MatchesNearestLevelOfReference) {
  const Bytes values = NormalArray(DType::kF32, 64 * 500 + 33, 0.02, 1);
  const auto codec = MakeNf4Codec(Nf4Scales::kFloat);
  const Bytes back = Decoded(
      *codec, DType::kF32, Encoded(*codec, DType::kF32, values), values.size());
  for (size_t b = 0; b < values.size() / 4; b += 64) {
    const size_t end = std::min(values.size() / 4, b + 64);
    double largest = 0;
    for (size_t i = b; i < end; ++i) {
      largest = std::max(largest, std::fabs(ValueAt(DType::kF32, values, i)));
    }
    for (size_t i = b; i < end; ++i) {
      const double value = ValueAt(DType::kF32, values, i);
      double nearest = HUGE_VAL;
      for (const float level : kNf4Levels) {
        nearest = std::min(nearest, std::fabs(level * largest - value));
      }
      const double error = std::fabs(ValueAt(DType::kF32, back, i) - value);
      ASSERT_LE(error, nearest + largest * 0x1p-22);
    }
  }
}

TEST(Nf4CodecTest, DoubleQuantizationCostsLittleError) {
  const Bytes values = NormalArray(DType::kF32, 1 << 18, 0.02, 1);
  const auto error = [&](Nf4Scales scales) {
    const auto codec = MakeNf4Codec(scales);
    const Bytes back =
        Decoded(*codec, DType::kF32, Encoded(*codec, DType::kF32, values),
                values.size());
    double sum = 0;
    for (size_t i = 0; i < values.size() / 4; ++i) {
      sum += std::pow(
          ValueAt(DType::kF32, values, i) - ValueAt(DType::kF32, back, i), 2);
    }
    return std::sqrt(sum / double(values.size() / 4)) / 0.02;
  };
  EXPECT_LT(error(Nf4Scales::kFloat), 0.1);
  EXPECT_LT(error(Nf4Scales::kDouble), 1.01 * error(Nf4Scales::kFloat));
}

}  // namespace

}  // namespace tessera::offload
