#include "pipeline/schedule/stage_map.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> Ranks(const absl::StatusOr<StageMap>& map) {
  std::vector<int32_t> ranks;
  for (int32_t stage = 0; stage < map->stages(); ++stage) {
    ranks.push_back(map->RankOf(stage));
  }
  return ranks;
}

TEST(StageMapTest, MapsOfTheField) {
  EXPECT_THAT(Ranks(StageMap::Linear(3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(Ranks(StageMap::Loop(3, 2)), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(Ranks(StageMap::Zigzag(3, 2)), ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(Ranks(StageMap::Zigzag(2, 3)), ElementsAre(0, 1, 1, 0, 0, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(const StageMap both, StageMap::TwoWay(4));
  EXPECT_TRUE(both.two_way());
  EXPECT_EQ(both.RankOf(1), 1);
  EXPECT_EQ(both.RankFromBack(1), 2);
  EXPECT_THAT(both.StagesOf(0), ElementsAre(0, 3));
}

TEST(StageMapTest, EveryRankHoldsItsShareOfAllStages) {
  for (int64_t ranks = 1; ranks <= 7; ++ranks) {
    for (int64_t chunks = 1; chunks <= 5; ++chunks) {
      for (const auto& map :
           {StageMap::Loop(ranks, chunks), StageMap::Zigzag(ranks, chunks)}) {
        ASSERT_THAT(map, IsOk());
        EXPECT_EQ(map->ranks(), ranks);
        EXPECT_EQ(map->stages(), ranks * chunks);
        for (int32_t rank = 0; rank < ranks; ++rank) {
          const auto stages = map->StagesOf(rank);
          EXPECT_EQ(static_cast<int64_t>(stages.size()), chunks);
          for (const int32_t stage : stages) {
            EXPECT_EQ(map->RankOf(stage), rank);
            EXPECT_EQ(map->RankFromBack(stage), rank);
          }
        }
      }
    }
  }
}

TEST(StageMapTest, AnyOtherIsGivenByRanks) {
  EXPECT_THAT(Ranks(StageMap::Of({1, 0, 1})), ElementsAre(1, 0, 1));
  EXPECT_THAT(StageMap::Of({0, 2, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 1 of 3 has no stage")));
  EXPECT_THAT(StageMap::Of({0, -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
  EXPECT_THAT(StageMap::Of({0, 7}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 7 of a stage; 2 stages")));
  EXPECT_THAT(StageMap::Of({}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(StageMapTest, CountsThatCannotBeAreRefused) {
  for (const auto& map :
       {StageMap::Linear(0), StageMap::Loop(2, 0), StageMap::Zigzag(-1, 2),
        StageMap::TwoWay(0), StageMap::Loop(1 << 12, 1 << 12)}) {
    EXPECT_THAT(map, StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("at least 1")));
  }
}

}  // namespace
}  // namespace tessera::pipeline
