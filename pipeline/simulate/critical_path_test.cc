#include "pipeline/simulate/critical_path.h"

#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/simulate/testing/random_cases.h"

namespace tessera::pipeline {
namespace {

std::string TextOf(const std::vector<TimedAction>& path) {
  std::string text;
  for (const TimedAction& one : path) {
    text += (text.empty() ? "" : " ") + one.action.ToString();
  }
  return text;
}

TEST(CriticalPathTest, FollowsAMicroBatchThroughAShortPipeline) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                               ReadCsv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  const Costs costs = Costs::Uniform(2, {.forward = 1,
                                         .backward_input = 1,
                                         .backward_weight = 1,
                                         .communication = 0.5});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, costs));
  EXPECT_EQ(TextOf(CriticalPath(schedule, timeline)),
            "0F0 1F0 1B0 1F1 1B1 0B1");
  EXPECT_TRUE(CriticalPath(schedule, Timeline()).empty());
}

TEST(CriticalPathTest, WithoutMessagesTimesAddUpToTheMakespan) {
  std::mt19937_64 random(1);
  int checked = 0;
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    RandomCase given = MakeRandomCase(random);
    given.costs.links = {};
    given.costs.synchronise_optimizer = false;
    given.costs.overlap_communication = true;  // Otherwise ranks rendezvous.
    for (StageCosts& stage : given.costs.stages) {
      stage.communication = stage.unshard = stage.reduce_gradient = 0;
      stage.optimizer = 0;
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                 Simulate(given.schedule, given.costs));
    double at = 0;
    for (const TimedAction& one : CriticalPath(given.schedule, timeline)) {
      EXPECT_EQ(one.begin, at);
      EXPECT_LE(one.begin, one.end);
      at = one.end;
      ++checked;
    }
    EXPECT_EQ(at, timeline.makespan);
  }
  EXPECT_GT(checked, 10000);
}

}  // namespace
}  // namespace tessera::pipeline
