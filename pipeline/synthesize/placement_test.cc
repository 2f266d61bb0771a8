#include "pipeline/synthesize/placement.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/passes/split_stages.h"
#include "pipeline/proof/validate.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

// One rank with `layers` layers of equal cost.
Schedule Layers(int64_t layers, int64_t microbatches) {
  const std::vector<int64_t> parts = {layers};
  return *SplitStages(*Generate("1f1b", {1, 1, microbatches}), parts);
}

Costs LayerCosts(int64_t layers, double unshard, double reduce) {
  return Costs::Uniform(layers, {.forward = 1,
                                 .backward_input = 1,
                                 .backward_weight = 1,
                                 .forward_bytes = 0,
                                 .backward_weight_bytes = 0,
                                 .unshard = unshard,
                                 .reduce_gradient = reduce,
                                 .unsharded_bytes = 10,
                                 .unreduced_bytes = 100});
}

// A gather and a reduction that together take as long as a layer's backward
// hide behind the adjacent layers: prefetching one layer ahead is enough, and
// more would need more memory.
TEST(ChoosePlacementTest, OneLayerAheadHidesGathersAsLongAsALayer) {
  const auto placement = ChoosePlacement(Layers(6, 1), LayerCosts(6, 1, 1));
  ASSERT_THAT(placement, IsOk());
  EXPECT_EQ(placement->options.prefetch, 1);
  // The first gather and the last reduction have nothing to overlap with.
  EXPECT_DOUBLE_EQ(placement->timeline.makespan, 1 + 6 * 3 + 1);
  const auto without =
      ChoosePlacement(Layers(6, 1), LayerCosts(6, 1, 1), {.prefetches = {0}});
  ASSERT_THAT(without, IsOk());
  EXPECT_GT(without->timeline.makespan, placement->timeline.makespan);
}

TEST(ChoosePlacementTest, ReducesEarlyIfFreeAndOnceIfExpensive) {
  const auto free = ChoosePlacement(Layers(4, 3), LayerCosts(4, 0, 0.1), {});
  ASSERT_THAT(free, IsOk());
  EXPECT_EQ(free->options.reduce, ReducePlacement::kEachMicroBatch);
  const auto dear = ChoosePlacement(Layers(4, 3), LayerCosts(4, 0, 8), {});
  ASSERT_THAT(dear, IsOk());
  EXPECT_EQ(dear->options.reduce, ReducePlacement::kLastMicroBatch);
  // Except when whole gradients do not fit.
  const auto limited =
      ChoosePlacement(Layers(4, 3), LayerCosts(4, 0, 8), {.memory_limit = 399});
  ASSERT_THAT(limited, IsOk());
  EXPECT_EQ(limited->options.reduce, ReducePlacement::kEachMicroBatch);
  EXPECT_LE(limited->peak_bytes, 399);
}

// Reductions that overlap, except the last one, cost little time and save
// memory.
TEST(ChoosePlacementTest, SpendsSlackOnMemory) {
  const Costs costs = LayerCosts(4, 0, 3.05);
  const auto fastest = ChoosePlacement(Layers(4, 3), costs, {.slack = 0});
  ASSERT_THAT(fastest, IsOk());
  EXPECT_EQ(fastest->options.reduce, ReducePlacement::kLastMicroBatch);
  const auto slower = ChoosePlacement(Layers(4, 3), costs, {.slack = 0.05});
  ASSERT_THAT(slower, IsOk());
  EXPECT_EQ(slower->options.reduce, ReducePlacement::kEachMicroBatch);
  EXPECT_LT(slower->peak_bytes, fastest->peak_bytes);
  EXPECT_LE(slower->timeline.makespan, 1.05 * fastest->timeline.makespan);
}

TEST(ChoosePlacementTest, MoreMemoryNeverMakesItSlower) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 30; ++i) {
    const auto ranks = static_cast<int64_t>(1 + random() % 3);
    std::vector<int64_t> parts;
    for (int64_t s = 0; s < ranks; ++s) {
      parts.push_back(static_cast<int64_t>(1 + random() % 4));
    }
    const Schedule schedule =
        *SplitStages(*Generate("1f1b", {ranks, 1, 4}), parts);
    Costs costs = LayerCosts(schedule.map.stages(), 0, 0);
    for (StageCosts& stage : costs.stages) {
      stage.unshard = static_cast<double>(random() % 8) / 2;
      stage.reduce_gradient = static_cast<double>(random() % 8) / 2;
      stage.unsharded_bytes = static_cast<int64_t>(random() % 20);
    }
    double before = std::numeric_limits<double>::infinity();
    for (const int64_t limit : {150, 220, 300, 500, 5000}) {
      const auto placement =
          ChoosePlacement(schedule, costs, {.memory_limit = limit});
      if (!placement.ok()) continue;
      EXPECT_LE(placement->peak_bytes, limit);
      EXPECT_LE(placement->timeline.makespan, before * 1.0011);
      before = std::min(before, placement->timeline.makespan);
      const auto lowered = AddCommunication(placement->schedule);
      ASSERT_THAT(lowered, IsOk());
      EXPECT_THAT(Validate(*lowered), IsOk());
    }
  }
}

TEST(ChoosePlacementTest, RejectsMisuse) {
  const auto refuses = [](const char* part) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
  };
  const Schedule schedule = Layers(2, 1);
  const Costs costs = LayerCosts(2, 1, 1);
  EXPECT_THAT(
      ChoosePlacement(schedule, costs, {.memory_limit = 50}),
      refuses("memory limit of 50 bytes; at least this much is needed: "));
  EXPECT_THAT(ChoosePlacement(schedule, costs, {.prefetches = {}}),
              refuses("0 prefetch distances"));
  EXPECT_THAT(ChoosePlacement(schedule, costs, {.slack = -1}),
              refuses("slack of -1"));
  EXPECT_THAT(ChoosePlacement(schedule, costs, {.max_unsharded_bytes = 5}),
              refuses("stage 0 needs 10 bytes"));
  EXPECT_THAT(ChoosePlacement(schedule, LayerCosts(3, 1, 1)),
              refuses("costs of 3 stages"));
}

}  // namespace
}  // namespace tessera::pipeline
