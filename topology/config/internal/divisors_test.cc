#include "topology/config/internal/divisors.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::topology::internal {
namespace {

using ::testing::ElementsAre;

TEST(DivisorsTest, AreThoseOfTheProduct) {
  for (int64_t a = 1; a <= 60; ++a) {
    for (int64_t b = 1; b <= 20; ++b) {
      std::vector<int64_t> expected;
      for (int64_t d = 1; d <= a * b; ++d) {
        if (a * b % d == 0) expected.push_back(d);
      }
      EXPECT_EQ(DivisorsOfProduct(std::vector<int64_t>{a, b}), expected)
          << a << " * " << b;
    }
  }
}

TEST(DivisorsTest, NoFactorsMultiplyToOne) {
  EXPECT_THAT(DivisorsOfProduct({}), ElementsAre(1));
}

TEST(DivisorsTest, HugeFactorsHaveTheirSmallDivisorsAndThemselves) {
  const int64_t prime = 9'223'372'036'854'775'783;  // The largest below 2^63.
  EXPECT_THAT(DivisorsOfProduct(std::vector<int64_t>{prime}),
              ElementsAre(1, prime));
  // 2^63-1 = 7^2 * 73 * 127 * 337 * 92737 * 649657.
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const int64_t d : DivisorsOfProduct(std::vector<int64_t>{most})) {
    EXPECT_EQ(most % d, 0);
  }
}

}  // namespace
}  // namespace tessera::topology::internal
