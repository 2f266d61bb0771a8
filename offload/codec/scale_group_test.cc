#include "offload/codec/scale_group.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

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

TEST(ScaleGroupTest, EqualScalesComeBackExact) {
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
