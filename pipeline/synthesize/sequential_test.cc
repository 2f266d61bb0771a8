#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/synthesize/evaluator.h"
#include "pipeline/synthesize/search.h"
#include "pipeline/synthesize/testing/oracle.h"
#include "pipeline/synthesize/testing/random_order.h"
#include "pipeline/synthesize/testing/random_problem.h"

namespace tessera::pipeline::synthesis {
namespace {

TEST(SequentialTest, DoesOneMicroBatchAtATime) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 5, .chunks = 3, .microbatches = 6});
    const StageMap map = RandomMap(problem.ranks, problem.chunks, random);
    const Model model = MakeModel(map, problem.microbatches, problem.costs, 0);
    const Order order = SequentialOrder(model);
    EXPECT_TRUE(Evaluator(model).Evaluate(order).valid);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Timeline timeline,
        Simulate(ScheduleOf(model, map, problem.microbatches, order, "test"),
                 problem.costs));
    const MemoryNeed need = LeastMemory(model);
    for (const RankTimeline& rank : timeline.ranks) {
      EXPECT_LE(rank.peak_activations, problem.chunks + map.two_way());
      EXPECT_LE(rank.peak_bytes, need.bytes);
    }
    EXPECT_EQ(timeline.ranks[static_cast<size_t>(need.rank)].peak_bytes,
              need.bytes);
  }
}

TEST(SequentialTest, UsesLeastMemory) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 60; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 3, .chunks = 1, .microbatches = 2});
    const StageMap map = *StageMap::Linear(problem.ranks);
    const auto m = static_cast<int32_t>(problem.microbatches);
    const int64_t least =
        LeastMemory(MakeModel(map, m, problem.costs, 0)).bytes;
    EXPECT_GT(BestOfAll(map, m, problem.costs, least, true).schedules, 0);
    EXPECT_EQ(BestOfAll(map, m, problem.costs, least - 1, true).schedules, 0);
  }
}

}  // namespace
}  // namespace tessera::pipeline::synthesis
