#include "topology/digits.h"

#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Digits Make(std::vector<Digit> digits) { return Digits(digits); }

TEST(DigitsTest, MergesNeighboursAndDropsOnes) {
  EXPECT_THAT(Make({{2, 4}, {1, 2}, {8, 1}}).digits(),
              ElementsAre(Digit{1, 8}));
  EXPECT_THAT(Make({{1, 2}, {8, 3}}).digits(),
              ElementsAre(Digit{1, 2}, Digit{8, 3}));
  EXPECT_EQ(Make({}).count(), 1);
  EXPECT_EQ(Make({{1, 2}, {8, 3}}).count(), 6);
}

TEST(DigitsTest, GatherReadsWhatSpreadWrites) {
  const Digits digits = Make({{3, 2}, {12, 5}, {180, 7}});
  for (int64_t number = 0; number < digits.count(); ++number) {
    const int64_t offset = digits.Spread(number);
    EXPECT_EQ(digits.Gather(offset), number);
    EXPECT_EQ(digits.Gather(offset + 1 + 6), number);  // Other digits.
  }
}

TEST(DigitsTest, UnionOfDisjointDigits) {
  EXPECT_EQ(Union(Make({{1, 2}}), Make({{2, 3}, {12, 2}})).count(), 12);
  EXPECT_THAT(Union(Make({{1, 2}}), Make({{2, 3}})).digits(),
              ElementsAre(Digit{1, 6}));
}

TEST(DigitsTest, SplitPartsSpellTheSameNumber) {
  std::mt19937 random(7);
  int splits = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto size = [&] { return static_cast<int64_t>(1 + random() % 6); };
    const int64_t a = size(), gap = size(), b = size();
    const Digits whole = Make({{1, a}, {a * gap, b}});
    const std::vector<int64_t> sizes = {size(), size(), size()};
    const auto parts = whole.Split(sizes);
    if (!parts.ok()) continue;
    ++splits;
    ASSERT_EQ(sizes[0] * sizes[1] * sizes[2], whole.count());
    for (int64_t offset = 0; offset < a * gap * b; ++offset) {
      int64_t number = 0;
      for (size_t p = 3; p-- > 0;) {
        number = number * sizes[p] + (*parts)[p].Gather(offset);
      }
      ASSERT_EQ(number, whole.Gather(offset));
    }
  }
  EXPECT_GT(splits, 500);
}

TEST(DigitsTest, SplitRefusesCutsInsideADigitAndWrongProducts) {
  const std::vector<int64_t> uneven = {4, 6};
  EXPECT_THAT(Make({{1, 6}, {12, 4}}).Split(uneven),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("part of size 4")));
  EXPECT_THAT(Make({{1, 24}}).Split(uneven), IsOk());
  const std::vector<int64_t> few = {2, 3};
  EXPECT_THAT(Make({{1, 12}}).Split(few),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("do not multiply to 12")));
  const std::vector<int64_t> many = {12, 2};
  EXPECT_THAT(Make({{1, 12}}).Split(many), Not(IsOk()));
}

}  // namespace
}  // namespace tessera::topology
