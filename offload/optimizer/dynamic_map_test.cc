#include "offload/optimizer/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

// The construction of the paper's authors: the midpoints of equal steps between
// 0.1 and 1, times the power of ten of their decade, both signs, 0 and 1,
// sorted.
std::vector<double> Reference(bool is_signed) {
  std::vector<double> values = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int steps = 1 << (decade + (is_signed ? 0 : 1));
    for (int step = 0; step < steps; ++step) {
      const double low = 0.1 + 0.9 * step / steps;
      const double high = 0.1 + 0.9 * (step + 1) / steps;
      const double value = (low + high) / 2 * std::pow(10, decade - 6);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

template <bool kSigned>
void ExpectReference() {
  const std::vector<double> reference = Reference(kSigned);
  ASSERT_EQ(reference.size(), 256u);
  for (int code = 0; code < 256; ++code) {
    const double expected = reference[static_cast<size_t>(code)];
    EXPECT_NEAR(DynamicMap<kSigned>::Value(code), expected,
                std::fabs(expected) * 0x1p-22)
        << code;
  }
}

TEST(DynamicMap, MatchesPaper) {
  ExpectReference<true>();
  ExpectReference<false>();
}

template <bool kSigned>
void ExpectThresholdsBetween() {
  using Map = DynamicMap<kSigned>;
  for (int decade = 0; decade <= Map::kDecades; ++decade) {
    const int rank = Map::Steps(decade);
    const double middle =
        (static_cast<double>(decade == 0 ? 0 : Map::ValueOfRank(rank - 1)) +
         static_cast<double>(Map::ValueOfRank(rank))) /
        2;
    EXPECT_NEAR(Map::Threshold(decade), middle, middle * 1e-6) << decade;
  }
}

TEST(DynamicMap, ThresholdsLieBetweenNeighbours) {
  ExpectThresholdsBetween<true>();
  ExpectThresholdsBetween<false>();
}

template <bool kSigned>
void ExpectDecadesOfPowers() {
  using Map = DynamicMap<kSigned>;
  for (int exponent = -22; exponent <= 0; ++exponent) {
    const double low = std::ldexp(1, exponent), high = 2 * low;
    int decade = 0, within = 0;
    for (int i = 1; i <= Map::kDecades; ++i) {
      const double threshold = Map::Threshold(i);
      if (low >= threshold) decade = i;
      if (low < threshold && threshold < high) ++within;
    }
    EXPECT_EQ(Map::DecadeOfPower(exponent), decade) << exponent;
    EXPECT_LE(within, 1) << exponent;
  }
}

TEST(DynamicMap, FindsDecadesByExponents) {
  ExpectDecadesOfPowers<true>();
  ExpectDecadesOfPowers<false>();
}

}  // namespace
}  // namespace tessera::offload
