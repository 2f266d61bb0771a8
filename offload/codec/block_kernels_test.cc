#include "offload/codec/block_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {

namespace {

// The level nearest to `x` (the lower one in a tie), by trying all levels.
// Distances of floats are exact here, or differ by far more than the rounding.
int NearestLevel(double x) {
  int best = 0;
  for (int i = 1; i < 16; ++i) {
    if (std::fabs(x - kNf4Levels[i]) < std::fabs(x - kNf4Levels[best])) {
      best = i;
    }
  }
  return best;
}

std::vector<uint8_t> Nf4Codes(const std::vector<float>& values, float scale) {
  const size_t blocks = values.size() / kNf4Block;
  const std::vector<float> scales(blocks, scale);
  std::vector<uint8_t> packed(blocks * kNf4BlockBytes);
  QuantizeNf4(values.data(), blocks, scales.data(), packed.data());
  std::vector<uint8_t> codes(values.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t place = i % kNf4Block;
    const uint8_t both =
        packed[i / kNf4Block * kNf4BlockBytes + place % kNf4BlockBytes];
    codes[i] = place < kNf4BlockBytes ? both & 15 : both >> 4;
  }
  return codes;
}

TEST(Nf4Test, LevelsMatchQlora) {
  // The published values: appendix E of arXiv 2305.14314.
  const double published[] = {-1.0,
                              -0.6961928009986877,
                              -0.5250730514526367,
                              -0.39491748809814453,
                              -0.28444138169288635,
                              -0.18477343022823334,
                              -0.09105003625154495,
                              0.0,
                              0.07958029955625534,
                              0.16093020141124725,
                              0.24611230194568634,
                              0.33791524171829224,
                              0.44070982933044434,
                              0.5626170039176941,
                              0.7229568362236023,
                              1.0};
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(kNf4Levels[i], static_cast<float>(published[i]));
    EXPECT_NEAR(kNf4Levels[i], published[i], 1e-8);
  }
}

TEST(Nf4Test, ThresholdsAreTheLastFloatsOfTheLowerLevel) {
  for (size_t i = 0; i < 15; ++i) {
    const float last = kNf4Thresholds[i];
    EXPECT_EQ(NearestLevel(last), static_cast<int>(i));
    EXPECT_EQ(NearestLevel(std::nextafter(last, 2.0f)),
              static_cast<int>(i) + 1);
  }
}

TEST(Nf4Test, ChoosesTheNearestLevel) {
  std::vector<float> values;
  for (int i = 0; i < 16; ++i) values.push_back(kNf4Levels[i]);
  for (const float threshold : kNf4Thresholds) {
    values.push_back(std::nextafter(threshold, -2.0f));
    values.push_back(threshold);
    values.push_back(std::nextafter(threshold, 2.0f));
  }
  for (float x = -1.25f; x <= 1.25f; x += 0x1p-14f) values.push_back(x);
  values.push_back(std::numeric_limits<float>::denorm_min());
  values.push_back(-std::numeric_limits<float>::denorm_min());
  values.push_back(-0.0f);
  values.resize((values.size() + 63) / 64 * 64);
  ForEachInstructionSet([&] {
    const std::vector<uint8_t> codes = Nf4Codes(values, 1.0f);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(codes[i], NearestLevel(values[i])) << values[i];
    }
  });
}

TEST(Nf4Test, ScalesFromTheSmallestToTheLargest) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> unit(64 * 100);
  for (float& value : unit) value = uniform(random);
  for (const float scale :
       {0x1p-149f, 0x1.8p-140f, 0x1p-126f, 0x1.5p-64f, 0x1.fp-65f, 0.02f,
        0x1.4p90f, std::numeric_limits<float>::max()}) {
    std::vector<float> values;
    for (const float value : unit) values.push_back(value * scale);
    ForEachInstructionSet([&] {
      const std::vector<uint8_t> codes = Nf4Codes(values, scale);
      for (size_t i = 0; i < values.size(); ++i) {
        // The quotient is rounded: near a threshold either level is correct.
        const double x = double{values[i]} / double{scale};
        const double best = std::fabs(x - kNf4Levels[NearestLevel(x)]);
        ASSERT_LE(std::fabs(x - kNf4Levels[codes[i]]), best + 0x1p-22)
            << values[i] << " of " << scale;
      }
    });
  }
}

TEST(Nf4Test, ClampsValuesAboveScale) {
  std::vector<float> values(64, 3e38f);
  std::fill_n(values.begin(), 32, -3e38f);
  ForEachInstructionSet([&] {
    for (const float scale : {1.0f, 1e-30f, 0x1p-149f}) {
      const std::vector<uint8_t> codes = Nf4Codes(values, scale);
      EXPECT_EQ(codes[0], 0);
      EXPECT_EQ(codes[63], 15);
    }
    // With a scale of zero only zero gets the level of zero.
    EXPECT_EQ(Nf4Codes(values, 0.0f), std::vector<uint8_t>(64, 7));
  });
}

TEST(Nf4Test, DecodesToLevelTimesScale) {
  std::vector<uint8_t> packed(256 / 32 * 32);
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = uint8_t(i);
  const size_t blocks = packed.size() / kNf4BlockBytes;
  std::vector<float> scales;
  for (size_t b = 0; b < blocks; ++b) scales.push_back(0.37f * float(b));
  ForEachInstructionSet([&] {
    std::vector<float> values(blocks * kNf4Block);
    DequantizeNf4(packed.data(), blocks, scales.data(), values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t b = i / 64, j = i % 64;
      const uint8_t both = packed[b * 32 + j % 32];
      const int code = j < 32 ? both & 15 : both >> 4;
      EXPECT_EQ(values[i], kNf4Levels[code] * scales[b]);
    }
  });
}

TEST(Int8Test, RoundsToTheNearestStepAndTiesToEven) {
  // With a scale of 127 a step is 1.
  std::vector<float> values;
  for (int i = -1270; i <= 1270; ++i) values.push_back(float(i) / 10);
  for (int i = -127; i < 127; ++i) values.push_back(float(i) + 0.5f);
  values.resize((values.size() + 127) / 128 * 128);
  const size_t blocks = values.size() / 128;
  const std::vector<float> scales(blocks, 127.0f);
  ForEachInstructionSet([&] {
    std::vector<int8_t> codes(values.size());
    QuantizeInt8(values.data(), blocks, scales.data(), codes.data());
    std::vector<float> back(values.size());
    DequantizeInt8(codes.data(), blocks, scales.data(), back.data());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(codes[i], std::nearbyint(values[i])) << values[i];
      EXPECT_EQ(back[i], codes[i]);
    }
  });
}

TEST(Int8Test, RoundTripsScale) {
  std::mt19937_64 random(1);
  std::vector<float> scales = {0, 0x1p-149f, std::numeric_limits<float>::max()};
  while (scales.size() < 20000) {
    const float x = std::bit_cast<float>(uint32_t(random() >> 33));
    if (std::isfinite(x)) scales.push_back(x);
  }
  std::vector<int8_t> codes(scales.size() * 128);
  for (size_t b = 0; b < scales.size(); ++b) {
    codes[b * 128] = 127;
    codes[b * 128 + 77] = -127;
    codes[b * 128 + 78] = -128;  // Occurs only in damaged data.
  }
  ForEachInstructionSet([&] {
    std::vector<float> values(codes.size());
    DequantizeInt8(codes.data(), scales.size(), scales.data(), values.data());
    for (size_t b = 0; b < scales.size(); ++b) {
      ASSERT_EQ(values[b * 128], scales[b]);
      ASSERT_EQ(values[b * 128 + 77], -scales[b]);
      ASSERT_EQ(values[b * 128 + 78], -scales[b]);
      // Positive zero under every instruction set.
      ASSERT_EQ(std::bit_cast<uint32_t>(values[b * 128 + 1]), 0);
    }
  });
}

TEST(LargestMagnitudesTest, FindsOneAnywhere) {
  ForEachInstructionSet([] {
    for (const size_t block : {kNf4Block, kInt8Block}) {
      for (size_t i = 0; i < 2 * block; ++i) {
        std::vector<float> values(2 * block, -1.0f);
        values[i] = -3.5f;
        std::vector<float> largest(2);
        LargestMagnitudes(values.data(), 2, block, largest.data());
        EXPECT_EQ(largest[i / block], 3.5f);
        EXPECT_EQ(largest[1 - i / block], 1.0f);
        for (const float bad : {-std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::quiet_NaN()}) {
          values[i] = bad;
          LargestMagnitudes(values.data(), 2, block, largest.data());
          EXPECT_FALSE(std::isfinite(largest[i / block]));
          EXPECT_TRUE(std::isfinite(largest[1 - i / block]));
        }
      }
    }
  });
}

std::vector<float> RoundTrip(const std::vector<float>& scales) {
  std::vector<int8_t> codes(scales.size());
  const ScaleGroup group = QuantizeScales(scales, codes);
  std::vector<float> back(scales.size(), -1);
  DequantizeScales(group, codes, back);
  return back;
}

void ExpectWithinBound(const std::vector<float>& scales) {
  const double largest = *std::max_element(scales.begin(), scales.end());
  const std::vector<float> back = RoundTrip(scales);
  for (size_t i = 0; i < scales.size(); ++i) {
    EXPECT_GE(back[i], 0);
    EXPECT_LE(std::fabs(double{back[i]} - double{scales[i]}),
              largest * (0.5 / 127 + 0x1p-22) + 0x1p-142)
        << scales[i] << " of " << largest;
  }
}

TEST(ScaleGroupTest, KeepsItsBoundForRandomScales) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> scales(1 + random() % 256);
    std::lognormal_distribution<float> skewed(0, float(i % 7));
    const float unit = std::ldexp(1.0f, int(random() % 240) - 140);
    for (float& scale : scales) {
      scale = std::min(skewed(random) * unit, 0x1p127f);
    }
    ExpectWithinBound(scales);
  }
}

TEST(ScaleGroupTest, KeepsItsBoundAtTheEnds) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  ExpectWithinBound({0});
  ExpectWithinBound(std::vector<float>(256, 0.0f));
  ExpectWithinBound(std::vector<float>(256, kMost));
  ExpectWithinBound(std::vector<float>(255, kLeast));
  ExpectWithinBound({0, kMost});
  ExpectWithinBound({0, kLeast, 2 * kLeast, 300 * kLeast});
  std::vector<float> outlier(256, 1e-3f);
  outlier[100] = kMost;
  ExpectWithinBound(outlier);
}

TEST(ScaleGroupTest, RoundTripsEqualScalesExactly) {
  for (const float scale : {0.0f, 0.1f, 3e38f, 1e-45f}) {
    const std::vector<float> scales(256, scale);
    EXPECT_EQ(RoundTrip(scales), scales);
  }
}

TEST(ScaleGroupTest, AnyCodesGiveFiniteScales) {
  std::vector<int8_t> codes;
  for (int i = -128; i < 128; ++i) codes.push_back(static_cast<int8_t>(i));
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const ScaleGroup group :
       {ScaleGroup{kMost, kMost}, ScaleGroup{0, kMost}, ScaleGroup{0, 0}}) {
    std::vector<float> scales(codes.size());
    DequantizeScales(group, codes, scales);
    for (const float scale : scales) {
      EXPECT_TRUE(std::isfinite(scale));
      EXPECT_GE(scale, 0);
    }
  }
}

}  // namespace

}  // namespace tessera::offload
