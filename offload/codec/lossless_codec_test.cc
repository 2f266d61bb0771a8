#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codecs.h"
#include "offload/codec/plane_coder.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

constexpr size_t kFrame = 65536;

class LosslessCodecTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    codec_ =
        GetParam() == "fast" ? MakeLosslessFastCodec() : MakeLosslessCodec();
    if (GetParam() != "lz4") return;
    auto codec = MakeLosslessLz4Codec();
    if (!codec.ok()) GTEST_SKIP() << codec.status();
    codec_ = *std::move(codec);
  }

  void ExpectSameBits(DType dtype, const Bytes& values) {
    const Bytes encoded = Encoded(*codec_, dtype, values);
    EXPECT_TRUE(Decoded(*codec_, dtype, encoded, values.size()) == values)
        << dtype << ", " << values.size() << " bytes";
  }

  double RatioOf(DType dtype, const Bytes& values) {
    return double(values.size()) /
           double(Encoded(*codec_, dtype, values).size());
  }

  std::unique_ptr<Codec> codec_;
};
INSTANTIATE_TEST_SUITE_P(, LosslessCodecTest,
                         ::testing::Values("best", "fast", "lz4"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(LosslessCodecTest, KeepsEveryPatternOf16Bits) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    ExpectSameBits(dtype, AllPatterns());
    Bytes shuffled = AllPatterns();
    auto* const patterns = reinterpret_cast<uint16_t*>(shuffled.data());
    std::shuffle(patterns, patterns + 65536, std::mt19937_64(1));
    ExpectSameBits(dtype, shuffled);
  }
}

TEST_P(LosslessCodecTest, PreservesSpecialFloats) {
  std::vector<float> floats;
  for (const float value :
       {0.0f, std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::min(), std::numeric_limits<float>::max(),
        std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::signaling_NaN()}) {
    floats.insert(floats.end(), 1000, value);
    floats.insert(floats.end(), 1000, -value);
  }
  Bytes values(floats.size() * sizeof(float));
  std::memcpy(values.data(), floats.data(), values.size());
  // NaNs with any payload.
  for (size_t i = 0; i < 5000; ++i) {
    const uint32_t nan = 0x7f800001 + static_cast<uint32_t>(i * 1677);
    std::memcpy(&values[4 * (3000 + i)], &nan, sizeof(nan));
  }
  for (const DType dtype : kAllDTypes) ExpectSameBits(dtype, values);
}

TEST_P(LosslessCodecTest, KeepsAnyBytesAcrossFrames) {
  for (const DType dtype : kAllDTypes) {
    const auto size = static_cast<size_t>(SizeInBytes(dtype));
    for (const size_t count : {size_t{1}, size_t{255}, kFrame - 1, kFrame,
                               kFrame + 1, 2 * kFrame + 77}) {
      ExpectSameBits(dtype, RandomBytes(count * size, count));
      ExpectSameBits(dtype, Bytes(count * size));
      Bytes mixed = NormalArray(dtype, count, 0.02, count);
      std::fill_n(mixed.begin(), mixed.size() / 3, std::byte{0xff});
      ExpectSameBits(dtype, mixed);
    }
  }
}

TEST_P(LosslessCodecTest, ExpansionIsBounded) {
  for (const DType dtype : kAllDTypes) {
    const auto size = static_cast<size_t>(SizeInBytes(dtype));
    for (const size_t count : {size_t{0}, size_t{1}, kFrame, 3 * kFrame + 1}) {
      const size_t frames = (count + kFrame - 1) / kFrame;
      const Bytes noise = RandomBytes(count * size, count);
      EXPECT_LE(Encoded(*codec_, dtype, noise).size(),
                16 + count * size + 4 * size * frames);
    }
  }
}

TEST_P(LosslessCodecTest, ConstantsAreNearlyFree) {
  EXPECT_GT(RatioOf(DType::kF32, Bytes(4 << 20)), 10000);
}

TEST_P(LosslessCodecTest, CompressesRepeatedUniformBytes) {
  // All bytes of a number are evenly distributed, but the numbers repeat.
  Bytes values(4 * 40 * kFrame);
  const Bytes row = RandomBytes(4 * 256, 5);
  for (size_t i = 0; i < values.size(); ++i) values[i] = row[i % row.size()];
  const bool matches =
      GetParam() == "lz4" ||
      (GetParam() == "best" && HasPlaneMethod(PlaneMethod::kZstd));
  if (matches) {
    EXPECT_GT(RatioOf(DType::kI32, values), 20);
  }
  ExpectSameBits(DType::kI32, values);
}

TEST(LosslessRatioTest, ReachesRatioOfExponentEntropy) {
  if (!HasPlaneMethod(PlaneMethod::kZstd)) GTEST_SKIP() << "needs zstd";
  const auto codec = MakeLosslessCodec();
  const auto ratio = [&](DType dtype, double deviation) {
    const Bytes values = NormalArray(dtype, 1 << 20, deviation, 1);
    return double(values.size()) /
           double(Encoded(*codec, dtype, values).size());
  };
  for (const double deviation : {0.02, 1e-3, 0.7}) {
    EXPECT_GE(ratio(DType::kBF16, deviation), 1.48);
    EXPECT_GE(ratio(DType::kF32, deviation), 1.18);
    EXPECT_GE(ratio(DType::kF64, deviation), 1.13);
  }
}

TEST(LosslessRatioTest, FastCodecLosesLittleRatio) {
  const auto codec = MakeLosslessFastCodec();
  const Bytes bf16 = NormalArray(DType::kBF16, 1 << 20, 0.02, 1);
  EXPECT_GE(
      double(bf16.size()) / double(Encoded(*codec, DType::kBF16, bf16).size()),
      1.42);
  const Bytes f32 = NormalArray(DType::kF32, 1 << 20, 0.02, 1);
  EXPECT_GE(
      double(f32.size()) / double(Encoded(*codec, DType::kF32, f32).size()),
      1.17);
}

TEST(LosslessCodecsTest, DecodeEachOther) {
  const auto best = MakeLosslessCodec();
  auto lz4 = MakeLosslessLz4Codec();
  if (!lz4.ok()) GTEST_SKIP() << lz4.status();
  const Bytes values = NormalArray(DType::kF32, 100000, 0.02, 1);
  const Bytes by_lz4 = Encoded(**lz4, DType::kF32, values);
  const Bytes by_best = Encoded(*best, DType::kF32, values);
  EXPECT_TRUE(Decoded(*best, DType::kF32, by_lz4, values.size()) == values);
  EXPECT_TRUE(Decoded(**lz4, DType::kF32, by_best, values.size()) == values);
}

TEST(LosslessCodecsTest, OneCodecServesManyThreads) {
  const auto codec = MakeLosslessCodec();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&codec, t] {
      for (uint64_t i = 0; i < 8; ++i) {
        const Bytes values = NormalArray(DType::kBF16, 70000, 0.02, 8 * t + i);
        EXPECT_TRUE(Decoded(*codec, DType::kBF16,
                            Encoded(*codec, DType::kBF16, values),
                            values.size()) == values);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LosslessCodecsTest, DamageNamesTheFrame) {
  const auto codec = MakeLosslessCodec();
  const Bytes values = RandomBytes(2 * kFrame, 1);
  Bytes encoded = Encoded(*codec, DType::kU8, values);
  encoded[16 + 4 + kFrame + 3] = std::byte{0xf0};  // An unknown method.
  Bytes back(values.size());
  EXPECT_THAT(codec->Decode(DType::kU8, encoded, back),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("frame 1")));
}

}  // namespace
}  // namespace tessera::offload
