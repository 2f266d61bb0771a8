#include "base/strong_int.h"

#include <cstdint>
#include <sstream>
#include <type_traits>

#include "absl/hash/hash_testing.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Rank = StrongInt<struct RankTag>;
using Size = StrongInt<struct SizeTag>;

static_assert(!std::is_convertible_v<int64_t, Rank>);
static_assert(!std::is_convertible_v<Rank, int64_t>);
static_assert(!std::is_constructible_v<Rank, Size>);
static_assert(sizeof(Rank) == sizeof(int64_t));
static_assert(std::is_trivially_copyable_v<Rank>);

TEST(StrongIntTest, StepsAndDifferencesArePlainIntegers) {
  Rank rank(3);
  EXPECT_EQ((rank + 4).value(), 7);
  EXPECT_EQ((rank - 4).value(), -1);
  EXPECT_EQ(Rank(9) - rank, 6);
  EXPECT_EQ((++rank).value(), 4);
}

TEST(StrongIntTest, ComparesByValue) {
  EXPECT_EQ(Rank(2), Rank(2));
  EXPECT_NE(Rank(2), Rank(3));
  EXPECT_LT(Rank(-1), Rank());
  EXPECT_GE(Rank(5), Rank(5));
}

TEST(StrongIntTest, HashesAndPrints) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {Rank(0), Rank(1), Rank(-1), Rank(INT64_MAX), Rank(INT64_MIN)}));
  std::ostringstream out;
  out << Rank(12);
  EXPECT_EQ(out.str(), "12");
}

}  // namespace
}  // namespace tessera
