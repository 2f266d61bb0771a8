#include "pipeline/synthesize/greedy.h"

#include "gtest/gtest.h"
#include "pipeline/synthesize/evaluator.h"
#include "pipeline/synthesize/search.h"
#include "pipeline/synthesize/testing/random_order.h"
#include "pipeline/synthesize/testing/random_problem.h"

namespace tessera::pipeline::synthesis {
namespace {

// Every policy and every variation of it gives an order that completes within
// the memory limit, however tight: one micro-batch at a time fits.
TEST(GreedyTest, NeverRunsOutOfMemoryHalfWay) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 25; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 6, .chunks = 3, .microbatches = 9});
    const StageMap map = random() % 2 == 0
                             ? *StageMap::Zigzag(problem.ranks, problem.chunks)
                             : *StageMap::Loop(problem.ranks, problem.chunks);
    Model model = MakeModel(map, problem.microbatches, problem.costs, 0);
    model.memory_limit =
        LeastMemory(model).bytes + static_cast<int64_t>(random() % 60);
    SCOPED_TRACE(::testing::Message() << i << ": " << problem);
    Greedy greedy(model);
    Evaluator evaluator(model);
    for (Policy& policy : FirstPolicies(model)) {
      for (int change = 0; change < 2; ++change) {
        const auto order = greedy.Run(policy);
        ASSERT_TRUE(order.has_value());
        ASSERT_TRUE(evaluator.Evaluate(*order).valid);
        policy = Vary(model, policy, random);
      }
    }
  }
}

TEST(GreedyTest, TwoWayPipelinesFinishWithMemoryForBothDirections) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 25; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 6, .chunks = 1, .microbatches = 9});
    Model model = MakeModel(*StageMap::TwoWay(problem.ranks),
                            problem.microbatches, problem.costs, 0);
    model.memory_limit =
        2 * LeastMemory(model).bytes + static_cast<int64_t>(random() % 60);
    Greedy greedy(model);
    Evaluator evaluator(model);
    for (const Policy& policy : FirstPolicies(model)) {
      const auto order = greedy.Run(policy);
      ASSERT_TRUE(order.has_value()) << problem;
      ASSERT_TRUE(evaluator.Evaluate(*order).valid) << problem;
    }
  }
}

TEST(GreedyTest, ReportsTooLittleMemory) {
  Model model = MakeModel(*StageMap::Linear(2), 3, Costs::Uniform(2, {}), 0);
  model.memory_limit = 1;
  EXPECT_TRUE(Greedy(model).Run(Policy(model)).has_value());
  model = MakeModel(*StageMap::Zigzag(2, 2), 3, Costs::Uniform(4, {}), 1);
  EXPECT_FALSE(Greedy(model).Run(Policy(model)).has_value());
}

TEST(GreedyTest, AScriptKeepsItsForwardsAndInputs) {
  std::mt19937_64 random(3);
  const auto without_weights = [](Order order) {
    for (auto& ops : order) {
      std::erase_if(ops, [](Op op) { return op.pass == Pass::kWeight; });
    }
    return order;
  };
  for (int i = 0; i < 100; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 5, .chunks = 2, .microbatches = 7});
    const StageMap map = RandomMap(problem.ranks, problem.chunks, random);
    const Model model = MakeModel(map, problem.microbatches, problem.costs, 0);
    Policy policy(model);
    policy.script = std::make_shared<const Order>(RandomOrder(model, random));
    const auto order = Greedy(model).Run(policy);
    ASSERT_TRUE(order.has_value());
    EXPECT_TRUE(Evaluator(model).Evaluate(*order).valid);
    EXPECT_EQ(without_weights(*order), without_weights(*policy.script));
  }
}

TEST(GreedyTest, InFlightAndLagAreKept) {
  const Model model =
      MakeModel(*StageMap::Linear(4), 20, Costs::Uniform(4, {1, 1, 1, 0}), 0);
  for (const int32_t most : {1, 2, 3}) {
    Policy policy(model);
    for (RankPolicy& rank : policy.ranks) {
      rank.in_flight = most;
      rank.lag = most - 1;
    }
    const auto order = Greedy(model).Run(policy);
    ASSERT_TRUE(order.has_value());
    for (const auto& ops : *order) {
      int done[3] = {0, 0, 0};
      for (const Op op : ops) {
        ++done[static_cast<size_t>(op.pass)];
        EXPECT_LE(done[0] - done[1], most);
        // One more may be held before a forward releases memory.
        if (done[0] < 20) {
          EXPECT_LE(done[1] - done[2], most + 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline::synthesis
