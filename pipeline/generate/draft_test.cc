#include "pipeline/generate/draft.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

TEST(DraftTest, MicroBatchesThatAreNotThereAreLeftOut) {
  ActionList list(2);
  StageTurns stage(list, 5);
  for (int i = 0; i < 3; ++i) stage.Forward();
  stage.Backward();
  for (int i = 0; i < 2; ++i) stage.BackwardInput();
  for (int i = 0; i < 2; ++i) stage.BackwardWeight();
  EXPECT_EQ(stage.forwards(), 3);
  EXPECT_EQ(stage.backwards(), 3);
  EXPECT_EQ(stage.finished(), 3);
  EXPECT_EQ(std::move(list).Take(),
            (std::vector<Action>{{ActionKind::kForward, 5, 0},
                                 {ActionKind::kForward, 5, 1},
                                 {ActionKind::kBackward, 5, 0},
                                 {ActionKind::kBackwardInput, 5, 1},
                                 {ActionKind::kBackwardWeight, 5, 1}}));
}

TEST(DraftTest, TurnsHaveTheirOwnFirstAndLast) {
  ActionList list(9);
  StageTurns stage(list, 0, 4, 5);
  stage.Forward();
  stage.Forward();
  EXPECT_EQ(std::move(list).Take(),
            (std::vector<Action>{{ActionKind::kForward, 0, 4}}));
}

TEST(DraftTest, HalfAPairIsNone) {
  ActionList list(2);
  list.Add(ActionKind::kForward, 0, 1);
  list.Add(ActionKind::kBackward, 1, 0);
  list.PairFrom(0);
  const size_t begin = list.size();
  list.Add(ActionKind::kForward, 0, 2);
  list.Add(ActionKind::kBackward, 1, 1);
  list.PairFrom(begin);
  const std::vector<Action> actions = std::move(list).Take();
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_TRUE(actions[0].with_next);
  EXPECT_FALSE(actions[1].with_next);
  EXPECT_FALSE(actions[2].with_next);
}

TEST(DraftTest, ShapesThatAreTooLargeAreToldWhatFits) {
  const ShapeRule rule = {.name = "x"};
  constexpr int64_t kMost = kMostActions / 3;
  TESSERA_EXPECT_OK(CheckShape(rule, {1, 1, kMost}));
  TESSERA_EXPECT_OK(CheckShape(rule, {kMost, 1, 1}));
  EXPECT_THAT(
      CheckShape(rule, {1, 1, kMost + 1}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("x for 1 ranks, 1 chunks and 5592406 micro-batches: "
                         "more than 16777216 actions, 3 of each stage and "
                         "micro-batch; 5592405 "
                         "micro-batches work")));
  EXPECT_THAT(CheckShape(rule, {kMost, 2, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("fewer ranks or chunks work")));
}

TEST(DraftTest, PatternsThatAreTooLargeAreToldWhatFits) {
  const ShapeRule rule = {
      .name = "y", .least_microbatches = 1 << 20, .multiple_of = 6};
  EXPECT_EQ(rule.PatternMicroBatches(1), 1048578);
  EXPECT_EQ(rule.PatternMicroBatches(1048579), 1048584);
  EXPECT_THAT(CheckShape(rule, {8, 1, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("(of 1048578 or more, a multiple of 6); fewer "
                                 "ranks or chunks work")));
  TESSERA_EXPECT_OK(CheckShape(rule, {2, 2, 1398096}));
  EXPECT_THAT(CheckShape(rule, {2, 2, 1398101}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("; 1398096 micro-batches work")));
}

TEST(DraftTest, AMapsErrorIsHandedOn) {
  EXPECT_THAT(
      EmptySchedule("x", StageMap::Linear(0), 1),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 ranks")));
}

}  // namespace
}  // namespace tessera::pipeline
