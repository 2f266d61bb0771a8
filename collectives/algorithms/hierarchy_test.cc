#include "collectives/algorithms/hierarchy.h"

#include <algorithm>
#include <random>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::HasSubstr;
using topology::Rank;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(HierarchyTest, GroupsAreNumberedByTheirFirstRanks) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Hierarchy hierarchy,
      Hierarchy::FromLabels(
          std::vector<std::vector<int64_t>>{{7, -1, 7, -1, 7}}));
  EXPECT_EQ(hierarchy.ranks(), 5);
  EXPECT_EQ(hierarchy.levels(), 1);
  EXPECT_EQ(hierarchy.GroupOf(0, Rank(0)), 0);
  EXPECT_EQ(hierarchy.GroupOf(0, Rank(1)), 1);
  EXPECT_EQ(hierarchy.GroupOf(0, Rank(4)), 0);
  EXPECT_EQ(hierarchy.LargestGroup(), 3);
}

TEST(HierarchyTest, LevelsNest) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Hierarchy hierarchy,
      Hierarchy::FromLabels(
          std::vector<std::vector<int64_t>>{{7, 7, -1, 9}, {5, 5, 2, 5}}));
  EXPECT_EQ(hierarchy.levels(), 2);
  EXPECT_EQ(hierarchy.LargestGroup(), 3);
  EXPECT_EQ(hierarchy.GroupOf(0, Rank(3)), 2);
  EXPECT_EQ(hierarchy.GroupOf(1, Rank(2)), 1);
  EXPECT_EQ(hierarchy.GroupOf(1, Rank(3)), 0);
}

TEST(HierarchyTest, FlatHasNoLevels) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Hierarchy flat, Hierarchy::Flat(6));
  EXPECT_EQ(flat.ranks(), 6);
  EXPECT_EQ(flat.levels(), 0);
  EXPECT_EQ(flat.LargestGroup(), 6);
  EXPECT_THAT(Hierarchy::Flat(0),
              StatusIs(kInvalid, HasSubstr("at least 1 is needed")));
}

TEST(HierarchyTest, RestrictPreservesGroups) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Hierarchy hierarchy,
      Hierarchy::FromLabels(std::vector<std::vector<int64_t>>{
          {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1}}));
  const std::vector<Rank> members = {Rank(5), Rank(3), Rank(0), Rank(2)};
  EXPECT_THAT(Hierarchy::FromLabels(std::vector<std::vector<int64_t>>{
                  {2, 1, 0, 1}, {1, 0, 0, 0}}),
              IsOkAndHolds(hierarchy.Restrict(members)));
  EXPECT_EQ(hierarchy.Restrict(members).LargestGroup(), 3);
}

TEST(HierarchyTest, RejectsZeroLevelsAndZeroRanks) {
  EXPECT_THAT(Hierarchy::FromLabels({}),
              StatusIs(kInvalid, HasSubstr("at least one level")));
  EXPECT_THAT(Hierarchy::FromLabels(std::vector<std::vector<int64_t>>{{}}),
              StatusIs(kInvalid, HasSubstr("at least one rank")));
}

TEST(HierarchyTest, RejectsNonNestedLevels) {
  EXPECT_THAT(Hierarchy::FromLabels(
                  std::vector<std::vector<int64_t>>{{0, 0, 1}, {0, 1, 1}}),
              StatusIs(kInvalid, HasSubstr("level 0: rank 1 shares a group "
                                           "with ranks of another group of "
                                           "level 1; levels must nest")));
  EXPECT_THAT(
      Hierarchy::FromLabels(std::vector<std::vector<int64_t>>{{0, 0}, {0}}),
      StatusIs(kInvalid, HasSubstr("level 1: has 1 ranks, level 0 has 2")));
}

using ::testing::ElementsAre;

Hierarchy Of(std::vector<std::vector<int64_t>> labels) {
  return *Hierarchy::FromLabels(labels);
}

TEST(LayersTest, GroupsKeepTheOrderOfTheList) {
  const Hierarchy hierarchy = Of({{0, 1, 0, 1, 0}});
  const Layer layer =
      LayerOf(hierarchy, 0, std::vector<int64_t>{3, 4, 0, 1}, 1);
  EXPECT_THAT(layer.groups, ElementsAre(ElementsAre(3, 1), ElementsAre(4, 0)));
  EXPECT_TRUE(layer.even);
  EXPECT_FALSE(layer.IsTrivial());
  EXPECT_EQ(layer.group, 0);
  EXPECT_EQ(layer.place, 1);
  EXPECT_THAT(layer.Leaders(), ElementsAre(3, 4));
  EXPECT_THAT(layer.AtPlace(1), ElementsAre(1, 0));
}

TEST(LayersTest, OneGroupAndSingleRanksAreTrivial) {
  EXPECT_TRUE(LayerOf(Of({{0, 0, 0}}), 0, std::vector<int64_t>{0, 1, 2}, 0)
                  .IsTrivial());
  EXPECT_TRUE(LayerOf(Of({{0, 1, 2}}), 0, std::vector<int64_t>{0, 1, 2}, 0)
                  .IsTrivial());
  const Layer uneven =
      LayerOf(Of({{0, 0, 1}}), 0, std::vector<int64_t>{0, 1, 2}, 5);
  EXPECT_FALSE(uneven.IsTrivial());
  EXPECT_FALSE(uneven.even);
  EXPECT_EQ(uneven.group, -1);
}

TEST(LayersTest, OrdersBlocksByPositionIfEvenElseByGroup) {
  EXPECT_THAT(BlockOrder(Of({{0, 0, 1, 1}}), 0, {0, 1, 2, 3}),
              ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(BlockOrder(Of({{0, 1, 0, 1, 0}}), 0, {0, 1, 2, 3, 4}),
              ElementsAre(0, 2, 4, 1, 3));
}

TEST(LayersTest, BlockOrderIsAPermutation) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const auto n = static_cast<int64_t>(1 + random() % 20);
    std::vector<std::vector<int64_t>> labels(3);
    RankList everybody;
    for (int64_t rank = 0; rank < n; ++rank) {
      const auto label = static_cast<int64_t>(random() % 8);
      for (int level = 0; level < 3; ++level) {
        labels[static_cast<size_t>(level)].push_back(label >> level);
      }
      everybody.push_back(rank);
    }
    RankList order = BlockOrder(Of(labels), 0, everybody);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, everybody);
  }
}

}  // namespace

}  // namespace tessera::collectives
