#include "pipeline/passes/place_parameters.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/testing/schedules.h"
#include "pipeline/proof/validate.h"

namespace tessera::pipeline {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;

std::string Placed(std::string_view table, const ParameterOptions& options) {
  const auto placed = PlaceParameters(FromCsv(table), options);
  return placed.ok() ? WriteCsv(*placed) : placed.status().ToString();
}

constexpr std::string_view kTwoStages = "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n";

TEST(PlaceParametersTest, GathersAheadByPrefetchDistance) {
  EXPECT_EQ(Placed(kTwoStages, {.prefetch = 0}),
            "0UNSHARD,0F0,0F1,0RESHARD,1UNSHARD,1F0,1F1,1B0,1B1,1REDUCE_GRAD,"
            "1RESHARD,0UNSHARD,0B0,0B1,0REDUCE_GRAD,0RESHARD\n");
  EXPECT_EQ(Placed(kTwoStages, {.prefetch = 1}),
            "0UNSHARD,0F0,1UNSHARD,0F1,0RESHARD,1F0,1F1,1B0,0UNSHARD,1B1,"
            "1REDUCE_GRAD,1RESHARD,0B0,0B1,0REDUCE_GRAD,0RESHARD\n");
}

TEST(PlaceParametersTest, KeepsParametersReusedWithinDistance) {
  EXPECT_EQ(Placed(kTwoStages, {.prefetch = 4}),
            "0UNSHARD,1UNSHARD,0F0,0F1,1F0,1F1,1B0,1B1,1REDUCE_GRAD,1RESHARD,"
            "0B0,0B1,0REDUCE_GRAD,0RESHARD\n");
  EXPECT_EQ(
      Placed(kTwoStages, {.prefetch = std::numeric_limits<int64_t>::max()}),
      Placed(kTwoStages, {.prefetch = 100}));
}

TEST(PlaceParametersTest, BudgetIsSpentOnNextUse) {
  EXPECT_EQ(Placed(kTwoStages, {.prefetch = 4, .max_unsharded = 1}),
            Placed(kTwoStages, {.prefetch = 0}));
}

TEST(PlaceParametersTest, ByteBudgetIsSpentOnNextUse) {
  const ParameterOptions both{
      .prefetch = 4, .unsharded_bytes = {10, 20}, .max_unsharded_bytes = 30};
  EXPECT_EQ(Placed(kTwoStages, both), Placed(kTwoStages, {.prefetch = 4}));
  EXPECT_EQ(Placed(kTwoStages, {.prefetch = 4,
                                .unsharded_bytes = {10, 20},
                                .max_unsharded_bytes = 29}),
            Placed(kTwoStages, {.prefetch = 0}));
  EXPECT_THAT(Placed(kTwoStages,
                     {.unsharded_bytes = {10, 20}, .max_unsharded_bytes = 19}),
              HasSubstr("rank 0, action 2 (1F0): stage 1 needs 20 bytes of "
                        "gathered parameters; max_unsharded_bytes is 19"));
}

TEST(PlaceParametersTest, AStageWithoutBytesIsNeverGathered) {
  EXPECT_EQ(Placed(kTwoStages, {.prefetch = 0, .unsharded_bytes = {0, 20}}),
            "0F0,0F1,1UNSHARD,1F0,1F1,1B0,1B1,1REDUCE_GRAD,1RESHARD,0B0,0B1,"
            "0REDUCE_GRAD\n");
}

TEST(PlaceParametersTest, ReducesGradientsAsRequested) {
  ParameterOptions options{.prefetch = 0,
                           .unsharded_bytes = {0, 0},
                           .reduce = ReducePlacement::kEachMicroBatch};
  EXPECT_EQ(Placed(kTwoStages, options),
            "0F0,0F1,1F0,1F1,1B0,1REDUCE_GRAD,1B1,1REDUCE_GRAD,0B0,"
            "0REDUCE_GRAD,0B1,0REDUCE_GRAD\n");
  options.reduce = ReducePlacement::kNone;
  EXPECT_EQ(Placed(kTwoStages, options), kTwoStages);
}

TEST(PlaceParametersTest, ReducesStageWithoutWork) {
  // With one micro-batch nothing enters at the back.
  Schedule schedule = AllForwardAllBackward(*StageMap::TwoWay(2), 1);
  const auto placed = PlaceParameters(schedule, {.prefetch = 0});
  ASSERT_THAT(placed, IsOk());
  EXPECT_EQ(placed->ranks[0].back().ToString(), "1REDUCE_GRAD");
  EXPECT_EQ(placed->ranks[1].back().ToString(), "0REDUCE_GRAD");
  EXPECT_THAT(Validate(*placed, {.communication = Communication::kImplied}),
              IsOk());
}

// The rule for the list of one rank without pairs, written directly.
std::vector<Action> Reference(const std::vector<Action>& actions,
                              const ParameterOptions& options) {
  std::vector<Action> list;
  std::vector<int32_t> gathered;
  const auto has = [](const std::vector<int32_t>& stages, int32_t stage) {
    return std::find(stages.begin(), stages.end(), stage) != stages.end();
  };
  for (size_t i = 0; i <= actions.size(); ++i) {
    std::vector<int32_t> near;
    for (size_t j = i;
         j < actions.size() && j <= i + static_cast<size_t>(options.prefetch);
         ++j) {
      const auto budget = static_cast<size_t>(options.max_unsharded);
      if (budget > 0 && near.size() == budget) break;
      if (actions[j].kind == ActionKind::kBackwardWeight) continue;
      if (!has(near, actions[j].stage)) near.push_back(actions[j].stage);
    }
    std::sort(gathered.begin(), gathered.end());
    const std::vector<int32_t> before = gathered;
    for (const int32_t stage : before) {
      if (has(near, stage)) continue;
      list.push_back({ActionKind::kReshard, stage});
      gathered.erase(std::find(gathered.begin(), gathered.end(), stage));
    }
    for (const int32_t stage : near) {
      if (has(gathered, stage)) continue;
      list.push_back({ActionKind::kUnshard, stage});
      gathered.push_back(stage);
    }
    if (i == actions.size()) break;
    list.push_back(actions[i]);
    const bool last =
        std::none_of(actions.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     actions.end(), [&](const Action& later) {
                       return later.stage == actions[i].stage &&
                              GivesWeightGradient(later.kind);
                     });
    if (last && GivesWeightGradient(actions[i].kind)) {
      list.push_back({ActionKind::kReduceGradient, actions[i].stage});
    }
  }
  return list;
}

TEST(PlaceParametersTest, FollowsRuleOnAnySchedule) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    const auto ranks = static_cast<int64_t>(1 + random() % 3);
    const auto chunks = static_cast<int64_t>(1 + random() % 4);
    const Schedule schedule = RandomOrder(
        *StageMap::Loop(ranks, chunks), static_cast<int32_t>(1 + random() % 5),
        random() % 2 == 0, random);
    const ParameterOptions options{
        .prefetch = static_cast<int64_t>(random() % 6),
        .max_unsharded = static_cast<int64_t>(random() % 4)};
    const auto placed = PlaceParameters(schedule, options);
    ASSERT_THAT(placed, IsOk());
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      EXPECT_EQ(placed->ranks[rank], Reference(schedule.ranks[rank], options));
    }
    const auto proof =
        Validate(*placed, {.communication = Communication::kImplied});
    ASSERT_THAT(proof, IsOk());
    if (options.max_unsharded > 0) {
      EXPECT_THAT(proof->peak_unsharded, Each(Le(options.max_unsharded)));
    }
    const auto lowered = AddCommunication(*placed);
    ASSERT_THAT(lowered, IsOk());
    EXPECT_THAT(Validate(*lowered), IsOk());
  }
}

TEST(PlaceParametersTest, RejectsMisuse) {
  const auto refuses = [](const std::string& part) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
  };
  const Schedule schedule = FromCsv(kTwoStages);
  EXPECT_THAT(PlaceParameters(schedule, {.prefetch = -1}),
              refuses("prefetch -1, max_unsharded 0"));
  EXPECT_THAT(PlaceParameters(schedule, {.max_unsharded = -2}),
              refuses("max_unsharded -2"));
  Schedule wrong = *PlaceParameters(schedule);
  EXPECT_THAT(PlaceParameters(wrong),
              refuses("rank 0, action 0 (0UNSHARD): the schedule's parameters "
                      "are placed already"));
  wrong = schedule;
  wrong.ranks[0][2].stage = 7;
  EXPECT_THAT(
      PlaceParameters(wrong),
      refuses("rank 0, action 2 (7F0): the schedule has stages 0 to 1"));
  wrong = schedule;
  wrong.ranks.emplace_back();
  EXPECT_THAT(PlaceParameters(wrong), refuses("2 lists of actions"));
  wrong = schedule;
  wrong.ranks[0].back().with_next = true;
  EXPECT_THAT(PlaceParameters(wrong), refuses("but is the last"));
}

TEST(PlaceParametersTest, APairOfTwoStagesNeedsABudgetOfTwo) {
  Schedule schedule = FromCsv("0F0,1F0,1B0,0F1,0B0,1F1,1B1,0B1\n");
  schedule.ranks[0][2].with_next = true;  // 1B0 with 0F1.
  EXPECT_THAT(PlaceParameters(schedule, {.max_unsharded = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0, action 3 (0F1) runs together with "
                                 "1B0, of another stage")));
  const auto placed =
      PlaceParameters(schedule, {.prefetch = 0, .max_unsharded = 2});
  ASSERT_THAT(placed, IsOk());
  const auto proof = Validate(*placed);
  ASSERT_THAT(proof, IsOk());
  EXPECT_EQ(proof->peak_unsharded[0], 2);
}

}  // namespace
}  // namespace tessera::pipeline
