#include "pipeline/synthesize/evaluator.h"

#include <algorithm>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/synthesize/testing/random_order.h"
#include "pipeline/synthesize/testing/random_problem.h"

namespace tessera::pipeline::synthesis {
namespace {

int64_t PeakOf(const Timeline& timeline) {
  int64_t peak = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    peak = std::max(peak, rank.peak_bytes);
  }
  return peak;
}

// The evaluator must agree with Simulate about the order.
void ExpectAsSimulated(const SynthesisProblem& problem, const StageMap& map,
                       const Order& order) {
  Model model = MakeModel(map, problem.microbatches, problem.costs, 0);
  Evaluator evaluator(model);
  const Schedule schedule =
      ScheduleOf(model, map, problem.microbatches, order, "test");
  const auto timeline = Simulate(schedule, problem.costs);
  const Evaluation evaluation = evaluator.Evaluate(order);
  ASSERT_EQ(evaluation.valid, timeline.ok()) << timeline.status();
  if (!timeline.ok()) return;
  EXPECT_EQ(evaluation.makespan, timeline->makespan);
  EXPECT_EQ(evaluation.longest_stage, timeline->longest_stage);
  for (int32_t rank = 0; rank < problem.ranks; ++rank) {
    const auto& line = timeline->ranks[static_cast<size_t>(rank)].computations;
    for (size_t at = 0; at < line.size(); ++at) {
      const ActionPosition place = {rank, static_cast<int32_t>(at)};
      ASSERT_EQ(evaluator.begin(place), line[at].begin);
      ASSERT_EQ(evaluator.end(place), line[at].end);
    }
  }
  model.memory_limit = PeakOf(*timeline);
  EXPECT_TRUE(evaluator.Evaluate(order).valid);
  --model.memory_limit;
  EXPECT_TRUE(model.memory_limit == 0 || !evaluator.Evaluate(order).valid);
}

TEST(EvaluatorTest, MatchesSimulate) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 400; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 6, .chunks = 3, .microbatches = 9});
    const StageMap map = RandomMap(problem.ranks, problem.chunks, random);
    const Model model = MakeModel(map, problem.microbatches, problem.costs, 0);
    SCOPED_TRACE(::testing::Message() << i << ": " << problem);
    Order order = RandomOrder(model, random);
    ExpectAsSimulated(problem, map, order);
    // Most of these orders cannot complete.
    auto& ops = order[random() % order.size()];
    if (ops.empty()) continue;
    std::swap(ops[random() % ops.size()], ops[random() % ops.size()]);
    ExpectAsSimulated(problem, map, order);
  }
}

TEST(EvaluatorTest, MatchesSimulateForGenerators) {
  std::mt19937_64 random(2);
  int cases = 0;
  for (int i = 0; i < 60; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 6, .chunks = 3, .microbatches = 9});
    for (const std::string_view name : GeneratorNames()) {
      const auto schedule =
          Generate(name, {problem.ranks, problem.chunks, problem.microbatches});
      if (!schedule.ok() ||
          schedule->map.stages() != problem.ranks * problem.chunks) {
        continue;
      }
      const Model model =
          MakeModel(schedule->map, problem.microbatches, problem.costs, 0);
      SCOPED_TRACE(::testing::Message() << name << ": " << problem);
      ExpectAsSimulated(problem, schedule->map, OrderOf(model, *schedule));
      ++cases;
    }
  }
  EXPECT_GE(cases, 200);
}

TEST(EvaluatorTest, TheCriticalPathAddsUp) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 5, .chunks = 2, .microbatches = 6});
    const StageMap map = RandomMap(problem.ranks, problem.chunks, random);
    const Model model = MakeModel(map, problem.microbatches, problem.costs, 0);
    const Order order = RandomOrder(model, random);
    Evaluator evaluator(model);
    const Evaluation evaluation = evaluator.Evaluate(order);
    for (const bool makespan : {false, true}) {
      const auto path = evaluator.CriticalPath(order, makespan);
      ASSERT_FALSE(path.empty());
      const ActionPosition last = path.front();
      const double first = makespan ? 0 : evaluator.begin({last.rank, 0});
      EXPECT_DOUBLE_EQ(
          evaluator.end(last) - first,
          makespan ? evaluation.makespan : evaluation.longest_stage);
      EXPECT_EQ(evaluator.begin(path.back()), 0);
      for (size_t at = 1; at < path.size(); ++at) {
        const double gap =
            evaluator.begin(path[at - 1]) - evaluator.end(path[at]);
        EXPECT_GE(gap, 0);
        // On one rank actions are adjacent; otherwise there is a message.
        if (path[at].rank == path[at - 1].rank) {
          EXPECT_EQ(gap, 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline::synthesis
