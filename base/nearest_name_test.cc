#include "base/nearest_name.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(NearestNameTest, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("layers", "LAYERS"), 0);
  EXPECT_EQ(EditDistance("layesr", "layers"), 1);
  EXPECT_EQ(EditDistance("lyers", "layers"), 1);
}

TEST(NearestNameTest, IsSymmetric) {
  const std::vector<std::string> words = {"", "a", "ab", "ba", "abc", "cab"};
  for (const auto& a : words) {
    for (const auto& b : words) {
      EXPECT_EQ(EditDistance(a, b), EditDistance(b, a)) << a << " " << b;
      EXPECT_EQ(EditDistance(a, b) == 0, a == b);
    }
  }
}

TEST(NearestNameTest, LongTextsAreCut) {
  EXPECT_EQ(EditDistance(std::string(1'000'000, 'a'), "a"), 63);
}

TEST(NearestNameTest, FindsTheNearestAndTheFirstOfSeveral) {
  const std::vector<std::string_view> names = {"dp", "tp", "layers"};
  EXPECT_EQ(NearestName("layer", names), "layers");
  EXPECT_EQ(NearestName("xp", names), "dp");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace tessera
