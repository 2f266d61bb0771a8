#include "topology/groups.h"

#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"

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

TEST(DigitsTest, GatherInvertsSpread) {
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

TEST(DigitsTest, SplitPreservesNumber) {
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

TEST(DigitsTest, SplitRejectsCutsInsideDigitAndWrongProducts) {
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

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Mesh Make(std::string_view axes, Rank first_rank = Rank(0)) {
  return *Mesh::Create(*ParseAxes(axes), first_rank);
}

std::vector<Rank> Ranks(std::vector<int64_t> values) {
  std::vector<Rank> ranks;
  for (int64_t value : values) ranks.emplace_back(value);
  return ranks;
}

TEST(GroupsTest, MatchesMegatronExample) {
  // 16 ranks, tensor 2, data 2, pipeline 4, in Megatron-LM's default order.
  const Mesh mesh = Make("tp2,dp2,pp4");
  EXPECT_THAT(mesh.GroupsAlong("tp,pp")->All(),
              ElementsAre(Ranks({0, 1, 4, 5, 8, 9, 12, 13}),
                          Ranks({2, 3, 6, 7, 10, 11, 14, 15})));
  EXPECT_THAT(mesh.GroupsAlong("dp")->Members(1), IsOkAndHolds(Ranks({1, 3})));
  EXPECT_THAT(mesh.GroupsAlong("pp")->MembersWith(Rank(6)),
              IsOkAndHolds(Ranks({2, 6, 10, 14})));
}

TEST(GroupsTest, ShiftWalksTheGroupEitherWay) {
  const Mesh mesh = Make("tp2,pp5,dp3");
  const Groups pp = *mesh.GroupsAlong("pp");
  for (int64_t r = 0; r < mesh.world_size(); ++r) {
    const std::vector<Rank> ring = *pp.MembersWith(Rank(r));
    const int64_t at = *pp.IndexOf(Rank(r));
    for (int64_t steps = -11; steps <= 11; ++steps) {
      const int64_t to = at + steps;
      const auto cyclic = pp.Shift(Rank(r), steps, Boundary::kCyclic);
      EXPECT_THAT(cyclic, IsOkAndHolds(std::optional<Rank>(
                              ring[static_cast<size_t>((to + 15) % 5)])));
      const std::optional<Rank> expected =
          to < 0 || to > 4 ? std::nullopt
                           : std::optional<Rank>(ring[static_cast<size_t>(to)]);
      EXPECT_THAT(pp.Shift(Rank(r), steps, Boundary::kOpen),
                  IsOkAndHolds(expected));
    }
  }
}

TEST(GroupsTest, ShiftTakesAnyNumberOfSteps) {
  const Groups pp = *Make("pp3").GroupsAlong("pp");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  // 2^63 - 1 = 1 and -2^63 = 1 modulo 3.
  EXPECT_THAT(pp.Shift(Rank(2), kMax, Boundary::kCyclic),
              IsOkAndHolds(std::optional<Rank>(Rank(0))));
  EXPECT_THAT(pp.Shift(Rank(2), kMin, Boundary::kCyclic),
              IsOkAndHolds(std::optional<Rank>(Rank(0))));
  EXPECT_THAT(pp.Shift(Rank(2), kMax, Boundary::kOpen),
              IsOkAndHolds(std::optional<Rank>()));
  EXPECT_THAT(pp.Shift(Rank(2), kMin, Boundary::kOpen),
              IsOkAndHolds(std::optional<Rank>()));
}

TEST(GroupsTest, HeadAndTailAreTheFirstAndLastRanks) {
  const Mesh mesh = Make("tp2,pp4");
  const Groups pp = *mesh.GroupsAlong("pp");
  EXPECT_THAT(pp.Head(Rank(5)), IsOkAndHolds(Rank(1)));
  EXPECT_THAT(pp.Tail(Rank(5)), IsOkAndHolds(Rank(7)));
}

TEST(GroupsTest, RanksStartAtTheOffset) {
  const Mesh mesh = Make("tp2,dp2", Rank(100));
  const Groups dp = *mesh.GroupsAlong("dp");
  EXPECT_THAT(dp.All(), ElementsAre(Ranks({100, 102}), Ranks({101, 103})));
  EXPECT_THAT(dp.GroupOf(Rank(103)), IsOkAndHolds(1));
  EXPECT_THAT(dp.GroupOf(Rank(0)),
              StatusIs(kInvalid, HasSubstr("ranks 100 to 103")));
}

TEST(GroupsTest, RejectsRanksGroupsAndIndicesOutside) {
  const Groups dp = *Make("tp2,dp3").GroupsAlong("dp");
  const auto outside = StatusIs(
      kInvalid, HasSubstr("rank 6 is outside the mesh's ranks 0 to 5"));
  EXPECT_THAT(dp.GroupOf(Rank(6)), outside);
  EXPECT_THAT(dp.IndexOf(Rank(6)), outside);
  EXPECT_THAT(dp.MembersWith(Rank(6)), outside);
  EXPECT_THAT(dp.Shift(Rank(6), 1, Boundary::kCyclic), outside);
  EXPECT_THAT(dp.Head(Rank(6)), outside);
  EXPECT_THAT(dp.Tail(Rank(6)), outside);
  EXPECT_THAT(dp.GroupOf(Rank(-1)), StatusIs(kInvalid, HasSubstr("rank -1")));
  EXPECT_THAT(dp.Members(2), StatusIs(kInvalid, HasSubstr("groups 0 to 1")));
  EXPECT_THAT(dp.Members(-1), StatusIs(kInvalid, HasSubstr("group -1")));
  EXPECT_THAT(dp.RankAt(0, 3), StatusIs(kInvalid, HasSubstr("members 0 to 2")));
  EXPECT_THAT(dp.RankAt(2, 0), StatusIs(kInvalid, HasSubstr("groups 0 to 1")));
}

}  // namespace

}  // namespace tessera::topology
