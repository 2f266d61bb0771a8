#include "pipeline/simulate/critical_path.h"

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/simulate/testing/longest_path.h"
#include "pipeline/simulate/testing/random_cases.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

Path PathOf(const RandomCase& given) {
  const Timeline timeline = *Simulate(given.schedule, given.costs);
  return *CriticalPath(
      given.schedule, timeline,
      {.overlap_communication = given.costs.overlap_communication});
}

// "0F0 0SEND_F0 ..."
std::string TextOf(const Path& path) {
  std::string text;
  for (const PathStep& step : path.steps) {
    text += text.empty() ? "" : " ";
    switch (step.kind) {
      case PathKind::kAction:
        text += step.action.ToString();
        break;
      case PathKind::kSynchronisation:
        text += "synchronisation";
        break;
      case PathKind::kOptimizer:
        text += "optimizer";
        break;
      case PathKind::kWait:
        text += "wait";
    }
  }
  return text;
}

TEST(CriticalPathTest, FollowsAMicroBatchThroughAShortPipeline) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                               ReadCsv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  Costs costs = Costs::Uniform(2, {.forward = 1,
                                   .backward_input = 1,
                                   .backward_weight = 1,
                                   .communication = 0.5});
  costs.stages[0].optimizer = 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, costs));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Path path,
                               CriticalPath(schedule, timeline));
  EXPECT_EQ(TextOf(path),
            "0F0 0SEND_F0 1F0 1B0 1F1 1B1 1SEND_B1 0B1 optimizer");
  EXPECT_EQ(path.steps[0].cause, Cause::kStart);
  EXPECT_EQ(path.steps[1].cause, Cause::kSameRank);
  EXPECT_EQ(path.steps[2].cause, Cause::kInput);
  EXPECT_EQ(path.steps[3].cause, Cause::kSameRank);
  EXPECT_EQ(path.SumOf(ActionKind::kForward), 3);
  EXPECT_EQ(path.SumOf(ActionKind::kBackward), 6);
  EXPECT_EQ(path.SumOf(ActionKind::kSendForward), 0.5);
  EXPECT_EQ(path.SumOf(ActionKind::kSendBackward), 0.5);
  EXPECT_EQ(path.optimizer, 2);
  EXPECT_EQ(path.waits, 0);
}

TEST(CriticalPathTest, IncludesBusyLink) {
  // Two forwards of 1, then messages of 4 each on one link.
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                               ReadCsv("0F0,0F1\n1F0,1F1\n"));
  Costs costs = Costs::Uniform(2, {.activation_bytes = 8});
  costs.links.everywhere = {.latency = 0.5, .bandwidth = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, costs));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Path path,
                               CriticalPath(schedule, timeline));
  EXPECT_EQ(TextOf(path), "0F0 0SEND_F0 0SEND_F1 1F1");
  // Only the first message's time on the link counts.
  EXPECT_EQ(path.steps[1].end - path.steps[1].begin, 4);
  EXPECT_EQ(path.steps[2].end - path.steps[2].begin, 4.5);
  EXPECT_EQ(path.steps[2].cause, Cause::kLink);
  EXPECT_EQ(path.steps[2].cause, Cause::kLink);
}

TEST(CriticalPathTest, StepsFollowEachOtherToTheMakespan) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    const RandomCase given = MakeRandomCase(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                 Simulate(given.schedule, given.costs));
    const Path path = PathOf(given);
    double at = 0;
    double sum = path.synchronisation + path.optimizer + path.waits;
    for (const double time : path.actions) sum += time;
    for (const PathStep& step : path.steps) {
      EXPECT_EQ(step.begin, at);
      EXPECT_LE(step.begin, step.end);
      at = step.end;
    }
    EXPECT_EQ(at, timeline.makespan);
    EXPECT_EQ(sum, timeline.makespan);
    EXPECT_EQ(path.waits, 0) << WriteCsv(given.schedule);
  }
}

// Makes one action shorter or longer, in an independent graph.
TEST(CriticalPathTest, OnlyActionsOnPathAffectMakespan) {
  std::mt19937_64 random(2);
  int on_path = 0;
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    const RandomCase given = MakeRandomCase(random);
    const Path path = PathOf(given);
    std::multiset<std::string> steps;
    for (const PathStep& step : path.steps) {
      steps.insert(std::to_string(step.rank) + ":" + step.action.ToString());
    }
    const LongestPath graph(given.schedule, given.costs);
    for (int trial = 0; trial < 8; ++trial) {
      const size_t rank = random() % given.schedule.ranks.size();
      const auto& actions = given.schedule.ranks[rank];
      if (actions.empty()) continue;
      const size_t at = random() % actions.size();
      // Gathers of a stage share one name, so they are skipped.
      if (!Computes(actions[at].kind)) continue;
      const std::string name =
          std::to_string(rank) + ":" + actions[at].ToString();
      LongestPath changed = graph;
      if (steps.count(name) == 0) {
        changed.Stretch(rank, at, -graph.TimeOf(rank, at));
        EXPECT_EQ(changed.makespan(), graph.makespan()) << name;
      } else {
        ++on_path;
        changed.Stretch(rank, at, 0.125);
        EXPECT_GE(changed.makespan(), graph.makespan() + 0.125) << name;
      }
    }
  }
  EXPECT_GT(on_path, 500);
}

// The same through Simulate, for all actions of a kind and stage.
TEST(CriticalPathTest, ActionsCostOncePerOccurrenceOnPath) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    RandomCase given = MakeRandomCase(random);
    const double before = Simulate(given.schedule, given.costs)->makespan;
    const Path path = PathOf(given);
    const auto stage = static_cast<int32_t>(
        random() % static_cast<uint64_t>(given.schedule.map.stages()));
    int times = 0;
    for (const PathStep& step : path.steps) {
      times += step.kind == PathKind::kAction && step.action.stage == stage &&
               step.action.kind == ActionKind::kForward;
    }
    double& time = given.costs.stages[static_cast<size_t>(stage)].forward;
    if (times == 0) {
      time = 0;
      EXPECT_EQ(Simulate(given.schedule, given.costs)->makespan, before);
    } else {
      time += 0.25;
      EXPECT_GE(Simulate(given.schedule, given.costs)->makespan,
                before + 0.25 * times);
    }
  }
}

TEST(CriticalPathTest, GapsOfAMeasuredTimelineAreWaits) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                               ReadCsv("0F0,0B0\n1F0,1B0\n"));
  Timeline timeline;
  timeline.ranks.resize(2);
  timeline.ranks[0].computations = {{schedule.ranks[0][0], 0.5, 1},
                                    {schedule.ranks[0][1], 5, 6}};
  timeline.ranks[1].computations = {{schedule.ranks[1][0], 1.5, 2.5},
                                    {schedule.ranks[1][1], 2.5, 4}};
  timeline.makespan = 7;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Path path,
                               CriticalPath(schedule, timeline));
  EXPECT_EQ(TextOf(path), "wait 0F0 wait 1F0 1B0 wait 0B0 wait");
  EXPECT_EQ(path.waits, 3);
  EXPECT_EQ(path.steps.back().end, 7);
}

TEST(CriticalPathTest, RejectsTimelinesOfOtherSchedules) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                               ReadCsv("0F0,0B0\n1F0,1B0\n"));
  TESSERA_ASSERT_OK_AND_ASSIGN(Schedule other,
                               ReadCsv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"));
  const Costs costs = Costs::Uniform(2, {});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, costs));
  EXPECT_THAT(CriticalPath(other, timeline),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0, action 1 (0F1)")));
  other.ranks.pop_back();
  EXPECT_THAT(CriticalPath(other, timeline),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 ranks for a schedule of 1")));
  // Lowered, but without the traces that contain messages.
  const Schedule lowered = *AddCommunication(schedule);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline totals,
                               Simulate(lowered, costs, {.traces = false}));
  EXPECT_THAT(
      CriticalPath(lowered, totals),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with traces")));
  Schedule strange = schedule;
  strange.ranks[0][0].stage = 7;
  EXPECT_THAT(CriticalPath(strange, timeline),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CriticalPathTest, AnEmptyScheduleHasAnEmptyPath) {
  Schedule schedule;
  schedule.ranks.resize(1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(schedule, Costs::Uniform(1, {})));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Path path,
                               CriticalPath(schedule, timeline));
  EXPECT_TRUE(path.steps.empty());
}

}  // namespace
}  // namespace tessera::pipeline
