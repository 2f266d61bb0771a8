#include <algorithm>

#include "gtest/gtest.h"
#include "pipeline/synthesize/search.h"
#include "pipeline/synthesize/testing/random_order.h"
#include "pipeline/synthesize/testing/random_problem.h"

namespace tessera::pipeline::synthesis {
namespace {

Order Sorted(Order order) {
  for (auto& ops : order) {
    std::sort(ops.begin(), ops.end(), [](Op a, Op b) {
      return std::pair(a.lane, a.pass) < std::pair(b.lane, b.pass);
    });
  }
  return order;
}

TEST(RefineTest, IsNeverWorseAndMostlyBetterThanChance) {
  std::mt19937_64 random(1);
  int better = 0;
  constexpr int kCases = 60;
  for (int i = 0; i < kCases; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 5, .chunks = 2, .microbatches = 8});
    const StageMap map = RandomMap(problem.ranks, problem.chunks, random);
    const Model model = MakeModel(map, problem.microbatches, problem.costs, 0);
    const Objective objective = {.prefer_makespan = i % 2 == 0};
    const Order first = RandomOrder(model, random);
    Evaluator evaluator(model);
    const Evaluation before = evaluator.Evaluate(first);
    Order order = first;
    Evaluation after = before;
    Refiner(model, objective, 0, 7).Refine(order, after, 300'000);
    EXPECT_EQ(Sorted(order), Sorted(first));
    const Evaluation again = evaluator.Evaluate(order);
    EXPECT_TRUE(again.valid);
    EXPECT_EQ(again.longest_stage, after.longest_stage);
    EXPECT_EQ(again.makespan, after.makespan);
    EXPECT_LE(objective.Cost(after), objective.Cost(before));
    better += objective.Preferred(after) < objective.Preferred(before);
    // An identical order.
    Order twin = first;
    Evaluation same = before;
    Refiner(model, objective, 0, 7).Refine(twin, same, 300'000);
    EXPECT_EQ(twin, order);
  }
  EXPECT_GE(better, kCases * 6 / 10);
}

TEST(RefineTest, KeepsToTheMemoryLimit) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 40; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 4, .chunks = 1, .microbatches = 8});
    Model model = MakeModel(*StageMap::Linear(problem.ranks),
                            problem.microbatches, problem.costs, 0);
    model.memory_limit = LeastMemory(model).bytes * 2;
    Order order = SequentialOrder(model);
    Evaluator evaluator(model);
    Evaluation evaluation = evaluator.Evaluate(order);
    ASSERT_TRUE(evaluation.valid);
    Refiner(model, {}, 0, 1).Refine(order, evaluation, 100'000);
    EXPECT_TRUE(evaluator.Evaluate(order).valid);
  }
}

TEST(RefineTest, UndoesASlowOrder) {
  const Model model =
      MakeModel(*StageMap::Linear(2), 2, Costs::Uniform(2, {1, 1, 1, 0}), 0);
  constexpr Pass kF = Pass::kForward, kI = Pass::kInput, kW = Pass::kWeight;
  Order order = {{{0, kF}, {0, kF}, {0, kI}, {0, kW}, {0, kI}, {0, kW}},
                 {{1, kF}, {1, kF}, {1, kI}, {1, kW}, {1, kI}, {1, kW}}};
  Evaluation evaluation = Evaluator(model).Evaluate(order);
  EXPECT_EQ(evaluation.makespan, 8);
  Refiner(model, {.prefer_makespan = true}, 0, 1)
      .Refine(order, evaluation, 100'000);
  EXPECT_EQ(evaluation.makespan, 7);
}

}  // namespace
}  // namespace tessera::pipeline::synthesis
