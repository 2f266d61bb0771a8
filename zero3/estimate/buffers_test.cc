// The limit of live elements and the plan of gathers; the buffers themselves
// are compared in estimate_memory_test.
#include "zero3/estimate/buffers.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "zero3/layout/testing_models.h"

namespace tessera::zero3 {
namespace {

using topology::Rank;

// The bytes of parameters that stay on a rank's device, counted offset by
// offset, and whole small parameters over all ranks.
int64_t StaysOnDevice(const StateLayout& layout, const ZeroConfig& config) {
  int64_t small = 0;
  int64_t largest = 0;
  for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
    int64_t shard = 0;
    for (int64_t i = 0; i < layout.all(Rank(rank)).size(); ++i) {
      const Parameter& parameter =
          layout.model()[layout.GlobalOf(Rank(rank), i)->parameter];
      const bool is_small =
          parameter.elements < config.parameter_persistence_threshold;
      (is_small ? small : shard) += SizeInBytes(parameter.dtype());
    }
    largest = std::max(largest, shard);
  }
  return small + (config.offload_parameters ? 0 : largest);
}

TEST(LiveElementLimitTest, IsWhatTheBudgetHasRoomForBesideWhatStays) {
  std::mt19937_64 random(11);
  int by_budget = 0;
  for (int round = 0; round < 2000; ++round) {
    ZeroConfig config;
    config.layout = static_cast<LayoutKind>(random() % 3);
    config.offload_parameters = random() % 2 == 0;
    config.parameter_persistence_threshold =
        static_cast<int64_t>(random() % 30);
    config.max_live_parameters = static_cast<int64_t>(random() % 300);
    config.device_parameter_budget =
        ByteSize(1 + static_cast<int64_t>(random() % 3000));
    const ModelParameters model = RandomModel(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const StateLayout layout,
        StateLayout::Create(
            model,
            config.MakeLayoutOptions(1 + static_cast<int64_t>(random() % 5))));
    int64_t widest = 1;
    for (const Parameter& parameter : model.all()) {
      if (parameter.elements == 0 ||
          parameter.elements < config.parameter_persistence_threshold) {
        continue;
      }
      widest = std::max(widest, SizeInBytes(parameter.dtype()));
    }
    // The most elements that fit, by trying; the default strategy uses 60 %.
    const int64_t budget = config.device_parameter_budget.bytes() * 60 / 100;
    const int64_t stays = StaysOnDevice(layout, config);
    int64_t fits = 0;
    while (fits < config.max_live_parameters &&
           stays + (fits + 1) * widest <= budget) {
      ++fits;
    }
    ASSERT_EQ(LiveElementLimit(layout, config), fits);
    if (fits > 0 && fits < config.max_live_parameters) ++by_budget;
  }
  EXPECT_GT(by_budget, 200);
}

TEST(GatherPlanTest, OnlyShardedOrOffloadedParametersOfStageThreeAreGathered) {
  const ModelParameters model = *ModelParameters::Builder()
                                     .Add({.name = "large", .shape = {100}})
                                     .Add({.name = "small", .shape = {9}})
                                     .Add({.name = "empty", .shape = {0}})
                                     .Build();
  const UseOrder order = UseOrder::ForwardBackward(model);
  for (int64_t stage = 0; stage <= 3; ++stage) {
    for (const int64_t ranks : {1, 2}) {
      for (const bool offload : {false, true}) {
        ZeroConfig config;
        config.stage = stage;
        config.offload_parameters = offload;
        config.parameter_persistence_threshold = 10;
        const StateLayout layout =
            *StateLayout::Create(model, config.MakeLayoutOptions(ranks));
        TESSERA_ASSERT_OK_AND_ASSIGN(const ReusePlan plan,
                                     GatherPlan(layout, config, order));
        const bool gathers = stage == 3 && (ranks > 1 || offload);
        EXPECT_EQ(plan.gathered, gathers ? 100 : 0);
        EXPECT_EQ(plan.windows.size(), gathers ? 2u : 0u);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::zero3
