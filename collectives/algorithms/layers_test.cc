#include "collectives/algorithms/layers.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

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

TEST(LayersTest, EvenGroupsOrderBlocksByPlaceUnevenOnesByGroup) {
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
