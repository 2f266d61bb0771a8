// Gathered parameters and the optimizer's step in a timeline; expected times
// are computed by hand.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> TextOf(const std::vector<TimedAction>& actions) {
  std::vector<std::string> text;
  for (const TimedAction& timed : actions) {
    text.push_back(absl::StrCat(timed.action.ToString(), " ", timed.begin, "-",
                                timed.end));
  }
  return text;
}

std::vector<std::string> TextOf(const std::vector<MemoryChange>& memory) {
  std::vector<std::string> text;
  for (const auto& [time, bytes] : memory) {
    text.push_back(absl::StrCat(bytes, " from ", time));
  }
  return text;
}

constexpr StageCosts kStage = {.forward = 2,
                               .backward_input = 1,
                               .backward_weight = 3,
                               .forward_bytes = 10,
                               .backward_input_bytes = -4,
                               .backward_weight_bytes = -6,
                               .unshard = 3,
                               .reduce_gradient = 5,
                               .unsharded_bytes = 100};

TEST(SimulateParametersTest, GathersOverlapComputationsSequentially) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ReadCsv("0UNSHARD,1UNSHARD,0F0,1F0,0RESHARD,1B0,1RESHARD,1REDUCE_GRAD,"
              "0UNSHARD,0I0,0W0,0RESHARD,0REDUCE_GRAD\n"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, Costs::Uniform(2, kStage)));
  const RankTimeline& line = timeline.ranks[0];
  EXPECT_THAT(
      TextOf(line.computations),
      ElementsAre("0F0 3-5", "1F0 6-8", "1B0 8-12", "0I0 20-21", "0W0 21-24"));
  EXPECT_THAT(
      TextOf(line.communications),
      ElementsAre("0UNSHARD 0-3", "1UNSHARD 3-6", "0RESHARD 8-8",
                  "1RESHARD 12-12", "1REDUCE_GRAD 12-17", "0UNSHARD 17-20",
                  "0RESHARD 24-24", "0REDUCE_GRAD 24-29"));
  EXPECT_EQ(timeline.makespan, 29);
  EXPECT_EQ(line.busy, 12);
  EXPECT_THAT(
      TextOf(line.memory),
      ElementsAre("100 from 0", "200 from 3", "210 from 3", "220 from 6",
                  "120 from 8", "110 from 12", "10 from 12", "110 from 17",
                  "106 from 21", "100 from 24", "0 from 24"));
  EXPECT_EQ(line.peak_bytes, 220);
}

TEST(SimulateParametersTest, ReleasesUnawaitedGathersAfterTheyComplete) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ReadCsv("0UNSHARD,0RESHARD,0RESHARD,0F0,0UNSHARD,0UNSHARD,0RESHARD\n"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, Costs::Uniform(1, kStage)));
  EXPECT_THAT(TextOf(timeline.ranks[0].computations), ElementsAre("0F0 0-2"));
  EXPECT_THAT(TextOf(timeline.ranks[0].memory),
              ElementsAre("100 from 0", "110 from 0", "10 from 3", "110 from 3",
                          "10 from 9"));
}

TEST(SimulateParametersTest, TheOptimizerStepsAfterTheRanksLastGradient) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ReadCsv("0F0,3F0,3B0,0B0,0REDUCE_GRAD\n1F0,2F0,2B0,1B0\n"));
  Costs costs = Costs::Uniform(4, {.forward = 1,
                                   .backward_input = 1,
                                   .backward_weight = 1,
                                   .reduce_gradient = 4});
  for (size_t stage = 0; stage < 4; ++stage) {
    costs.stages[stage].optimizer = 1 + static_cast<double>(stage);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline alone, Simulate(schedule, costs));
  // Stages 0 and 3, and 1 and 2; 1B0 ends at 10, 0B0 at 12, its reduction at
  // 16.
  EXPECT_EQ(alone.ranks[0].optimizer.begin, 16);
  EXPECT_EQ(alone.ranks[0].optimizer.end, 21);
  EXPECT_EQ(alone.ranks[1].optimizer.begin, 10);
  EXPECT_EQ(alone.ranks[1].optimizer.end, 15);
  EXPECT_EQ(alone.makespan, 21);
  EXPECT_EQ(alone.synchronisation.end, 0);
  EXPECT_EQ(alone.longest_stage, 12);  // Computations only.

  costs.synchronise_optimizer = true;
  costs.synchronisation = 0.5;
  costs.stages[1].optimizer = 7;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline together,
                               Simulate(schedule, costs));
  EXPECT_EQ(together.synchronisation.begin, 16);
  EXPECT_EQ(together.synchronisation.end, 16.5);
  EXPECT_EQ(together.ranks[0].optimizer.end, 21.5);
  EXPECT_EQ(together.ranks[1].optimizer.begin, 16.5);
  EXPECT_EQ(together.makespan, 26.5);

  for (StageCosts& stage : costs.stages) stage.optimizer = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline only, Simulate(schedule, costs));
  EXPECT_EQ(only.makespan, 16.5);
  EXPECT_EQ(only.ranks[0].optimizer.end, 0);
}

TEST(SimulateParametersTest, RanksOfTwoWayMapsStepBothOfTheirStages) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                               ReadCsv("0F0,1F1,1B1,0B0\n1F0,0F1,1B0,0B1\n"));
  ASSERT_TRUE(schedule.map.two_way());
  Costs costs = Costs::Uniform(2, {});
  costs.stages[0].optimizer = 1;
  costs.stages[1].optimizer = 10;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, costs));
  for (const RankTimeline& line : timeline.ranks) {
    EXPECT_EQ(line.optimizer.end - line.optimizer.begin, 11);
  }
}

}  // namespace
}  // namespace tessera::pipeline
