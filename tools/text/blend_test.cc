#include "tools/text/blend.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::text {

namespace {

TEST(BlendTest, EveryPrefixHasTheWeights) {
  std::mt19937_64 random(1);
  std::vector<std::vector<double>> cases = {
      {1}, {0.7, 0.3}, {1, 1, 1}, {0.5, 0.25, 0.125, 0.125}, {1e-6, 1}, {5, 2}};
  for (int i = 0; i < 20; ++i) {
    std::vector<double>& weights = cases.emplace_back(1 + random() % 9);
    for (double& weight : weights) {
      weight = 0.01 + static_cast<double>(random() % 1000);
    }
  }
  for (const std::vector<double>& weights : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Blend blend, Blend::Create(weights));
    double sum = 0;
    for (const double weight : weights) sum += weight;
    const double bound =
        (1 + std::ceil(std::log2(static_cast<double>(weights.size())))) / 2;
    std::vector<int64_t> counts(weights.size());
    for (int64_t i = 0; i < 3000; ++i) {
      const Blend::Place place = blend.At(i);
      ASSERT_LT(place.source, weights.size());
      // In order, without gaps.
      ASSERT_EQ(place.index, counts[place.source]++);
      for (size_t s = 0; s < weights.size(); ++s) {
        ASSERT_NEAR(static_cast<double>(counts[s]),
                    weights[s] / sum * static_cast<double>(i + 1), bound + 1e-3)
            << "source " << s << " of " << weights.size() << " at " << i;
      }
    }
  }
}

TEST(BlendTest, TakesLargeIndices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Blend blend,
                               Blend::Create(std::vector<double>{0.75, 0.25}));
  const int64_t large = int64_t{1} << 62;
  int64_t first = 0;
  for (int64_t i = large - 8; i < large; ++i) {
    const Blend::Place place = blend.At(i);
    if (place.source == 0) ++first;
    EXPECT_NEAR(static_cast<double>(place.index),
                place.source == 0 ? 0.75 * static_cast<double>(large)
                                  : 0.25 * static_cast<double>(large),
                1e6);
  }
  EXPECT_EQ(first, 6);
}

TEST(BlendTest, RejectsInvalidWeights) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const std::vector<double>& weights : {std::vector<double>{},
                                             {0.0},
                                             {1, 0},
                                             {1, -1},
                                             {1, kNan},
                                             {1, 1e300},
                                             {1.0 / 0.0}}) {
    EXPECT_THAT(Blend::Create(weights),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace

}  // namespace tessera::text
