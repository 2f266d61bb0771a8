#include "pipeline/generate/draft.h"

#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/testing/schedule_checker.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

namespace {

using ::testing::HasSubstr;

TEST(DraftTest, OmitsMissingMicroBatches) {
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

TEST(DraftTest, TurnsRespectFirstAndLastMicroBatch) {
  ActionList list(9);
  StageTurns stage(list, 0, 4, 5);
  stage.Forward();
  stage.Forward();
  EXPECT_EQ(std::move(list).Take(),
            (std::vector<Action>{{ActionKind::kForward, 0, 4}}));
}

TEST(DraftTest, DropsHalfPairs) {
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

TEST(DraftTest, RejectsTooLargeShapesWithAdvice) {
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

TEST(DraftTest, RejectsTooLargePatternsWithAdvice) {
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

TEST(DraftTest, ReturnsMapError) {
  EXPECT_THAT(
      EmptySchedule("x", StageMap::Linear(0), 1),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 ranks")));
}

std::string ErrorOf(std::string_view table) {
  return Execute(*ReadCsv(table)).error;
}

TEST(ScheduleCheckerTest, MatchesHandDrawnSchedule) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ReadCsv("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1I1,1W0,1W1\n"));
  const Execution run = Execute(schedule);
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.makespan, 7);
  EXPECT_EQ(run.longest_span, 7);
  EXPECT_EQ(run.peaks, (std::vector<int64_t>{2, 2}));
}

TEST(ScheduleCheckerTest, APairStartsWhenBothAreReady) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ReadCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"));
  const Execution run = Execute(schedule);
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.pairs, 1);
  EXPECT_EQ(run.makespan, 12);
}

TEST(ScheduleCheckerTest, DetectsErrors) {
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1B0\n"), "");
  EXPECT_THAT(ErrorOf("0B0,0F0\n1F0,1B0\n"),
              "rank 0, position 0: 0B0 waits forever");
  EXPECT_THAT(ErrorOf("0F0,0B0\n1F0,1F0,1B0\n"),
              HasSubstr("1F0 is there twice"));
  EXPECT_THAT(ErrorOf("0F0,0W0,0I0\n1F0,1B0\n"), HasSubstr("0W0 waits"));
  EXPECT_THAT(ErrorOf("0F0,0I0\n1F0,1B0\n"), "a micro-batch misses a stage");
  EXPECT_THAT(ErrorOf("0F0,0F1,0B0\n1F0,1F1,1B1,1B0\n"),
              "a micro-batch misses a stage");
  EXPECT_THAT(ErrorOf("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n"),
              HasSubstr("waits forever"));
  Schedule wrong_rank = *ReadCsv("0F0,0B0\n1F0,1B0\n");
  std::swap(wrong_rank.ranks[0], wrong_rank.ranks[1]);
  EXPECT_THAT(Execute(wrong_rank).error, HasSubstr("no action of this rank"));
}

}  // namespace

}  // namespace tessera::pipeline
