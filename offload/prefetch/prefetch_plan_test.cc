#include "offload/prefetch/prefetch_plan.h"

#include <algorithm>
#include <map>
#include <random>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/prefetch/testing/brute_force.h"

namespace tessera::offload {
namespace {

using Span = PrefetchPlan::Span;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kByteANanosecond = 1'000'000'000;

PrefetchPlan::Input InputOf(const RandomStep& step) {
  return {.order = step.order,
          .budget = step.budget,
          .load_bytes_per_second = kByteANanosecond,
          .store_bytes_per_second = kByteANanosecond,
          .near = step.near};
}

TEST(PrefetchPlanTest, LoadsRunAheadOfCompute) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const PrefetchPlan plan,
      PrefetchPlan::Create(
          {.order = {{"a", 10, 10}, {"b", 10, 10}, {"c", 10, 10}},
           .budget = 20,
           .load_bytes_per_second = kByteANanosecond,
           .store_bytes_per_second = kByteANanosecond}));
  EXPECT_THAT(plan.computes(),
              ElementsAre(Span{10, 20}, Span{20, 30}, Span{30, 40}));
  EXPECT_EQ(plan.step_ns(), 40);
  EXPECT_EQ(plan.stall_ns(), 10);
  EXPECT_EQ(plan.bound_ns(), 40);
}

TEST(PrefetchPlanTest, DirtyVictimFreesMemoryAfterStore) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const PrefetchPlan plan,
      PrefetchPlan::Create({.order = {{"a", 10, 10, true}, {"b", 10, 10}},
                            .budget = 10,
                            .load_bytes_per_second = kByteANanosecond,
                            .store_bytes_per_second = kByteANanosecond / 2}));
  ASSERT_EQ(plan.stores().size(), 1u);
  EXPECT_EQ(plan.stores()[0].time, (Span{20, 40}));
  EXPECT_EQ(plan.loads()[1].time, (Span{40, 50}));
  EXPECT_EQ(plan.step_ns(), 60);
}

// The time for which each block occupies memory: from the start of its load (or
// of the step) until the start of the load that replaces it.
void CheckTimeline(const PrefetchPlan& plan) {
  const Replacement& r = plan.replacement();
  std::vector<Span> blocks_in_time;
  std::map<size_t, int64_t> since;
  std::multimap<int64_t, int64_t> changes;
  for (size_t b = 0; b < plan.input().near.size(); ++b) since[b] = 0;
  auto load = plan.loads().begin();
  for (size_t use = 0; use < r.steps().size(); ++use) {
    const Replacement::Step& step = r.steps()[use];
    const Span& compute = plan.computes()[use];
    // A missing block occupies memory from the start of its load, or of the use
    // that overwrites it.
    int64_t made = compute.start_ns;
    if (step.load) {
      ASSERT_NE(load, plan.loads().end());
      ASSERT_EQ(load->use, static_cast<int64_t>(use));
      ASSERT_GE(compute.start_ns, load->time.end_ns);
      made = (load++)->time.start_ns;
    }
    for (const auto& e : step.evict) {
      ASSERT_TRUE(since.contains(e.block));
      // If nothing is loaded, the earliest time at which it may be evicted.
      int64_t gone = step.load ? made : 0;
      if (e.after >= 0) {
        const int64_t end =
            plan.computes()[static_cast<size_t>(e.after)].end_ns;
        ASSERT_LE(end, made) << "leaves while in use";
        gone = std::max(gone, end);
      }
      if (e.store) {
        const auto store = std::find_if(
            plan.stores().begin(), plan.stores().end(), [&e](const auto& s) {
              return s.block == e.block && s.use == e.stored_after;
            });
        ASSERT_NE(store, plan.stores().end()) << "dropped dirty";
        ASSERT_LE(store->time.end_ns, made) << "leaves before it is stored";
        gone = std::max(gone, store->time.end_ns);
      }
      changes.insert({since[e.block], r.blocks()[e.block].bytes});
      changes.insert({gone, -r.blocks()[e.block].bytes});
      since.erase(e.block);
    }
    since.try_emplace(step.block, made);
  }
  for (const auto& [block, at] : since) {
    changes.insert({at, r.blocks()[block].bytes});
  }
  std::map<int64_t, int64_t> net;
  for (const auto& [at, bytes] : changes) net[at] += bytes;
  int64_t used = 0;
  for (const auto& [at, bytes] : net) {
    used += bytes;
    ASSERT_LE(used, plan.input().budget) << "at " << at << " ns";
  }
}

void CheckInTurn(const std::vector<PrefetchPlan::Transfer>& transfers) {
  for (size_t i = 1; i < transfers.size(); ++i) {
    ASSERT_GE(transfers[i].time.start_ns, transfers[i - 1].time.end_ns);
  }
}

TEST(PrefetchPlanTest, LoadsBlocksBeforeUseWithinBudget) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 2000; ++round) {
    const RandomStep step =
        MakeRandomStep(random, {.keys = 12,
                                .uses = 60,
                                .most_bytes = 9,
                                .most_compute_ns = 12,
                                .most_held = 3,
                                .dirty = true,
                                .overwrites = round % 2 == 0});
    TESSERA_ASSERT_OK_AND_ASSIGN(const PrefetchPlan plan,
                                 PrefetchPlan::Create(InputOf(step)));
    ASSERT_NO_FATAL_FAILURE(CheckTimeline(plan));
    ASSERT_NO_FATAL_FAILURE(CheckInTurn(plan.loads()));
    ASSERT_NO_FATAL_FAILURE(CheckInTurn(plan.stores()));
    ASSERT_GE(plan.step_ns(), plan.bound_ns());
    ASSERT_GE(plan.stall_ns(), 0);
    int64_t stored = 0;
    for (const auto& s : plan.stores()) {
      stored += plan.replacement().blocks()[s.block].bytes;
    }
    ASSERT_EQ(stored, plan.replacement().bytes_stored());
  }
}

TEST(PrefetchPlanTest, TakesAtMostTwiceTheShortestTime) {
  std::mt19937_64 random(7);
  int64_t optimal = 0;
  for (int round = 0; round < 1500; ++round) {
    const RandomStep step = MakeRandomStep(
        random,
        {.keys = 4, .uses = 7, .one_size = true, .overwrites = round % 2 == 0});
    TESSERA_ASSERT_OK_AND_ASSIGN(const PrefetchPlan plan,
                                 PrefetchPlan::Create(InputOf(step)));
    const int64_t shortest =
        BruteForceShortestStep(step.order, step.budget, step.near);
    ASSERT_GE(plan.step_ns(), shortest);
    ASSERT_LE(plan.step_ns(), 2 * shortest);
    optimal += plan.step_ns() == shortest;
  }
  EXPECT_GT(optimal, 1350);
}

TEST(PrefetchPlanTest, OverlapsSequentialPassLargerThanBudget) {
  PrefetchPlan::Input input{.order = {},
                            .budget = 80,
                            .load_bytes_per_second = kByteANanosecond,
                            .store_bytes_per_second = kByteANanosecond};
  for (int i = 0; i < 40; ++i) {
    input.order.push_back({std::to_string(i), 10, 10});
  }
  // By the farthest next use alone, 7 blocks would stay for the next step and
  // all others would pass through one slot, one after another.
  TESSERA_ASSERT_OK_AND_ASSIGN(const PrefetchPlan cold,
                               PrefetchPlan::Create(input));
  EXPECT_EQ(cold.step_ns(), cold.bound_ns());
  input.near = cold.replacement().left();
  TESSERA_ASSERT_OK_AND_ASSIGN(const PrefetchPlan warm,
                               PrefetchPlan::Create(input));
  EXPECT_LE(static_cast<double>(warm.step_ns()),
            1.05 * static_cast<double>(warm.bound_ns()));
}

TEST(PrefetchPlanTest, RespectsLeastSpare) {
  PrefetchPlan::Input input{.order = {},
                            .budget = 8,
                            .load_bytes_per_second = kByteANanosecond,
                            .store_bytes_per_second = kByteANanosecond};
  for (int i = 0; i < 20; ++i) input.order.push_back({std::to_string(i), 1});
  for (const int64_t least : {0, 3, 5}) {
    input.least_spare = least;
    TESSERA_ASSERT_OK_AND_ASSIGN(const PrefetchPlan plan,
                                 PrefetchPlan::Create(input));
    EXPECT_EQ(plan.spare(), least);
  }
}

TEST(PrefetchPlanTest, NoUsesTakeNoTime) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const PrefetchPlan plan,
      PrefetchPlan::Create({.order = {},
                            .budget = 1,
                            .load_bytes_per_second = 1,
                            .store_bytes_per_second = 1}));
  EXPECT_EQ(plan.step_ns(), 0);
}

TEST(PrefetchPlanTest, RejectsZeroBandwidthAndTimeOverflow) {
  PrefetchPlan::Input input = {.order = {{"a", 1, 1}},
                               .budget = 1,
                               .load_bytes_per_second = 1,
                               .store_bytes_per_second = 0};
  EXPECT_THAT(PrefetchPlan::Create(input),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bandwidths are above 0")));
  input.store_bytes_per_second = 1;
  input.order[0].bytes = input.budget = int64_t{1} << 60;
  EXPECT_THAT(PrefetchPlan::Create(input),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("too long to plan")));
}

}  // namespace
}  // namespace tessera::offload
