#include "tensor_parallel/random/philox.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::ElementsAre;

// The known answers from the tests of Random123, the authors' library.
TEST(Philox4x32Test, GivesThePublishedAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                         {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                         {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(PhiloxTest, EveryInputBitChangesHalfOfTheOutput) {
  const uint64_t bits = Philox({.seed = 3, .stream = 5}).Bits(1000);
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t flip = uint64_t{1} << bit;
    for (const uint64_t other :
         {Philox({.seed = 3 ^ flip, .stream = 5}).Bits(1000),
          Philox({.seed = 3, .stream = 5 ^ flip}).Bits(1000),
          Philox({.seed = 3, .stream = 5}).Bits(1000 ^ flip)}) {
      EXPECT_GE(std::popcount(bits ^ other), 10) << bit;
      EXPECT_LE(std::popcount(bits ^ other), 54) << bit;
    }
  }
}

// This makes shards independent of the mesh.
TEST(PhiloxTest, AnyCutOfTheIndicesGivesTheSameNumbers) {
  const Philox random({.seed = 1, .stream = 2});
  for (uint64_t first = 0; first < 7; ++first) {
    for (size_t count = 0; count < 9; ++count) {
      std::vector<double> normal(count);
      std::vector<float> uniform(count);
      random.FillNormal(first, std::span(normal));
      random.FillUniform(first, std::span(uniform));
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(normal[i], random.Normal(first + i));
        EXPECT_EQ(uniform[i], static_cast<float>(random.Uniform(first + i)));
      }
    }
  }
}

// The largest distance between the distribution function of the sorted sample
// and `cdf`, times the root of its size: above 1.95 once in a thousand samples
// (Kolmogorov); the sample is fixed.
template <typename Cdf>
double KolmogorovDistance(std::vector<double> sample, const Cdf& cdf) {
  std::sort(sample.begin(), sample.end());
  const auto n = static_cast<double>(sample.size());
  double distance = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double expected = cdf(sample[i]);
    distance =
        std::max({distance, std::abs(static_cast<double>(i) / n - expected),
                  std::abs(static_cast<double>(i + 1) / n - expected)});
  }
  return distance * std::sqrt(n);
}

TEST(PhiloxTest, UniformAndNormalNumbersAreDistributedAsTheyShould) {
  for (const uint64_t stream : {0, 1, 2}) {
    const Philox random({.seed = 9, .stream = stream});
    std::vector<double> values(100'000);
    random.FillUniform(0, std::span(values));
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 0);
    EXPECT_LT(*std::max_element(values.begin(), values.end()), 1);
    EXPECT_LT(KolmogorovDistance(values, [](double x) { return x; }), 1.95);
    random.FillNormal(0, std::span(values));
    EXPECT_LT(
        KolmogorovDistance(
            values, [](double x) { return std::erfc(-x / std::sqrt(2)) / 2; }),
        1.95);
  }
}

TEST(PhiloxTest, NeighboursAndStreamsAreNotCorrelated) {
  constexpr size_t kCount = 100'000;
  std::vector<double> a(kCount + 1);
  std::vector<double> b(kCount + 1);
  Philox({.seed = 9, .stream = 0}).FillNormal(0, std::span(a));
  Philox({.seed = 9, .stream = 1}).FillNormal(0, std::span(b));
  double streams = 0;
  double neighbours = 0;
  for (size_t i = 0; i < kCount; ++i) {
    streams += a[i] * b[i];
    neighbours += a[i] * a[i + 1];
  }
  // Four standard deviations of the mean of products.
  const double limit = 4 * std::sqrt(static_cast<double>(kCount));
  EXPECT_LT(std::abs(streams), limit);
  EXPECT_LT(std::abs(neighbours), limit);
}

}  // namespace
}  // namespace tessera::tensor_parallel
