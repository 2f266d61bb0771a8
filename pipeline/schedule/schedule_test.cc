#include "pipeline/schedule/schedule.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ActionTest, EveryKindRoundTrips) {
  for (const ActionKind kind : kActionKinds) {
    for (const int32_t stage : {0, 1, 17, kMostIndex}) {
      for (const int32_t microbatch : {0, 9, 1023, kMostIndex}) {
        Action action{kind, stage, microbatch};
        if (!HasMicroBatch(kind)) action.microbatch = kNoMicroBatch;
        EXPECT_THAT(ParseAction(action.ToString()), IsOkAndHolds(action));
      }
    }
  }
}

TEST(ActionTest, MatchesPyTorchFormat) {
  const struct {
    Action action;
    const char* text;
  } kCases[] = {
      {{ActionKind::kForward, 0, 0}, "0F0"},
      {{ActionKind::kBackwardInput, 1, 3}, "1I3"},
      {{ActionKind::kBackwardWeight, 1, 3}, "1W3"},
      {{ActionKind::kBackward, 2, 0}, "2B0"},
      {{ActionKind::kSendForward, 0, 0}, "0SEND_F0"},
      {{ActionKind::kReceiveForward, 1, 0}, "1RECV_F0"},
      {{ActionKind::kSendBackward, 12, 34}, "12SEND_B34"},
      {{ActionKind::kReceiveBackward, 12, 34}, "12RECV_B34"},
      {{ActionKind::kUnshard, 3}, "3UNSHARD"},
      {{ActionKind::kReshard, 3}, "3RESHARD"},
      {{ActionKind::kReduceGradient, 3}, "3REDUCE_GRAD"},
  };
  for (const auto& [action, text] : kCases) {
    EXPECT_EQ(action.ToString(), text);
    EXPECT_THAT(ParseAction(text), IsOkAndHolds(action));
  }
}

TEST(ActionTest, RejectsAndQuotesOtherTexts) {
  for (const char* text :
       {"", "F", "0", "0F", "F0", "0f0", "0X0", "-1F0", "0F-1", "0 F0", "0F0 ",
        "0UNSHARD1", "16777216F0", "0F16777216", "0F999999999999999999999",
        "0F0F0", "0SEND_F", "0SENDF0", "1.5F0"}) {
    EXPECT_THAT(ParseAction(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(std::string("\"") + text)))
        << text;
  }
}

TEST(CellTest, HasNoneOneOrTwoActions) {
  EXPECT_THAT(ParseCell(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParseCell("  "), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParseCell(" 0F8 "),
              IsOkAndHolds(ElementsAre(Action{ActionKind::kForward, 0, 8})));
  EXPECT_THAT(ParseCell("(0F8;7B4)OVERLAP_F_B"),
              IsOkAndHolds(ElementsAre(Action{ActionKind::kForward, 0, 8, true},
                                       Action{ActionKind::kBackward, 7, 4})));
  EXPECT_THAT(
      ParseCell("(0F8;7I4)OVERLAP_F_B"),
      IsOkAndHolds(ElementsAre(Action{ActionKind::kForward, 0, 8, true},
                               Action{ActionKind::kBackwardInput, 7, 4})));
  EXPECT_THAT(
      ParseCell("(1SEND_F3;1RECV_B0)"),
      IsOkAndHolds(ElementsAre(Action{ActionKind::kSendForward, 1, 3, true},
                               Action{ActionKind::kReceiveBackward, 1, 0})));
  EXPECT_THAT(
      ParseCell("(2RECV_F1;2SEND_B0)"),
      IsOkAndHolds(ElementsAre(Action{ActionKind::kReceiveForward, 2, 1, true},
                               Action{ActionKind::kSendBackward, 2, 0})));
  for (const char* text :
       {"(1SEND_F3;1SEND_B0)", "(1SEND_F3;1RECV_B0)OVERLAP_F_B", "(1SEND_F3)",
        "(1SEND_F3;1F0)", "(0F8)OVERLAP_F_B", "(0F8;7B4)",
        "(7B4;0F8)OVERLAP_F_B", "(0F8;7B4;1F1)OVERLAP_F_B",
        "(0F8;7F4)OVERLAP_F_B", "(", "()", "(;)OVERLAP_F_B",
        "((0F8;7B4)OVERLAP_F_B;1B1)OVERLAP_F_B"}) {
    EXPECT_THAT(ParseCell(text), StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(ActionKindTest, EveryKindIsOfOneSort) {
  for (const ActionKind kind : kActionKinds) {
    const bool of_parameters = !HasMicroBatch(kind);
    EXPECT_EQ(Computes(kind) + Communicates(kind) + of_parameters, 1);
    EXPECT_EQ(Sends(kind) || Receives(kind), Communicates(kind));
    EXPECT_LE(GivesInputGradient(kind) || GivesWeightGradient(kind),
              Computes(kind));
  }
}

std::vector<int32_t> Ranks(const absl::StatusOr<StageMap>& map) {
  std::vector<int32_t> ranks;
  for (int32_t stage = 0; stage < map->stages(); ++stage) {
    ranks.push_back(map->RankOf(stage));
  }
  return ranks;
}

TEST(StageMapTest, MatchesPublishedMaps) {
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

TEST(StageMapTest, AcceptsCustomMap) {
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

TEST(StageMapTest, RejectsInvalidCounts) {
  for (const auto& map :
       {StageMap::Linear(0), StageMap::Loop(2, 0), StageMap::Zigzag(-1, 2),
        StageMap::TwoWay(0), StageMap::Loop(1 << 12, 1 << 12)}) {
    EXPECT_THAT(map, StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("at least 1")));
  }
}

}  // namespace

}  // namespace tessera::pipeline
