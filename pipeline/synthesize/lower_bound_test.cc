#include "pipeline/synthesize/lower_bound.h"

#include <random>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/synthesize/testing/oracle.h"
#include "pipeline/synthesize/testing/random_problem.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

// How tight the bound is, and how often it equals the optimum.
struct Tightness {
  int cases = 0;
  int tight = 0;
  double sum = 0;  // Sum of optimum / bound.

  void Add(const SynthesisProblem& problem, const StageMap& map,
           bool in_turn = true) {
    const auto m = static_cast<int32_t>(problem.microbatches);
    const Oracle best =
        BestOfAll(map, m, problem.costs, problem.memory_limit, in_turn);
    if (!(best.longest_stage < 1e100)) return;
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const double bound,
        LowerBound(map, m, problem.costs, problem.memory_limit));
    ASSERT_LE(bound, best.longest_stage * (1 + 1e-12)) << problem;
    ++cases;
    if (best.longest_stage <= bound * (1 + 1e-9)) ++tight;
    if (bound > 0) sum += best.longest_stage / bound;
  }
};

TEST(LowerBoundTest, IsBelowTheBestOfAllSchedules) {
  std::mt19937_64 random(1);
  Tightness tightness;
  for (int i = 0; i < 400; ++i) {
    const SynthesisProblem problem = RandomProblem(
        random, {.ranks = 3, .microbatches = i % 20 == 0 ? 3 : 2});
    tightness.Add(problem, *StageMap::Linear(problem.ranks));
  }
  RecordProperty("cases", tightness.cases);
  RecordProperty("tight", tightness.tight);
  EXPECT_GE(tightness.cases, 300);
  EXPECT_GE(tightness.tight, tightness.cases * 6 / 10);
  EXPECT_LE(tightness.sum, tightness.cases * 1.1);
}

TEST(LowerBoundTest, IsBelowTheBestOfAllSchedulesOfTwoRanks) {
  std::mt19937_64 random(2);
  Tightness tightness;
  for (int i = 0; i < 300; ++i) {
    SynthesisProblem problem =
        RandomProblem(random, {.ranks = 2, .microbatches = 4});
    problem.microbatches = std::max<int64_t>(problem.microbatches, 3);
    tightness.Add(problem, *StageMap::Linear(problem.ranks));
  }
  EXPECT_GE(tightness.tight, tightness.cases * 6 / 10);
}

TEST(LowerBoundTest, InOrderMicroBatchesAreOptimal) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 60; ++i) {
    SynthesisProblem problem =
        RandomProblem(random, {.ranks = 3, .microbatches = 2});
    const StageMap map = *StageMap::Linear(problem.ranks);
    const auto m = static_cast<int32_t>(problem.microbatches);
    const Oracle in_turn =
        BestOfAll(map, m, problem.costs, problem.memory_limit, true);
    const Oracle any =
        BestOfAll(map, m, problem.costs, problem.memory_limit, false);
    EXPECT_GE(any.schedules, in_turn.schedules);
    EXPECT_EQ(any.longest_stage, in_turn.longest_stage) << problem;
    EXPECT_EQ(any.makespan, in_turn.makespan) << problem;
  }
}

TEST(LowerBoundTest, IsBelowTheBestOfAllSchedulesWithChunks) {
  std::mt19937_64 random(4);
  Tightness tightness;
  for (int i = 0; i < 200; ++i) {
    SynthesisProblem problem =
        RandomProblem(random, {.ranks = 3, .chunks = 1, .microbatches = 1});
    problem.chunks = 2;
    if (problem.ranks == 1) problem.microbatches = 2;
    while (problem.costs.stages.size() <
           static_cast<size_t>(2 * problem.ranks)) {
      problem.costs.stages.push_back(RandomCosts(random));
    }
    problem.memory_limit *= 3;
    tightness.Add(problem, *StageMap::Zigzag(problem.ranks, 2));
    tightness.Add(problem, *StageMap::Loop(problem.ranks, 2));
  }
  EXPECT_GE(tightness.cases, 200);
  EXPECT_GE(tightness.tight, tightness.cases / 2);
}

TEST(LowerBoundTest, IsBelowTheBestOfAllTwoWaySchedules) {
  std::mt19937_64 random(5);
  Tightness tightness;
  for (int i = 0; i < 100; ++i) {
    SynthesisProblem problem =
        RandomProblem(random, {.ranks = 1, .microbatches = 2});
    problem.ranks = 2;
    problem.costs.stages = {RandomCosts(random), RandomCosts(random)};
    problem.memory_limit *= 2;
    tightness.Add(problem, *StageMap::TwoWay(2));
  }
  EXPECT_GE(tightness.cases, 60);
}

TEST(LowerBoundTest, IsBelowEveryGenerator) {
  std::mt19937_64 random(6);
  int cases = 0;
  for (int i = 0; i < 300; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 9, .chunks = 3, .microbatches = 30});
    for (const Generator& generator : Generators()) {
      const auto schedule = generator.generate(
          {problem.ranks, problem.chunks, problem.microbatches});
      if (!schedule.ok()) continue;
      const auto timeline = Simulate(*schedule, problem.costs);
      if (!timeline.ok()) continue;  // Not for this number of stages.
      int64_t peak = 1;
      for (const RankTimeline& rank : timeline->ranks) {
        peak = std::max(peak, rank.peak_bytes);
      }
      // It stays within the limit that it needs.
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const double bound,
          LowerBound(schedule->map, problem.microbatches, problem.costs, peak));
      EXPECT_LE(bound, timeline->longest_stage * (1 + 1e-12))
          << generator.name << " " << problem;
      ++cases;
    }
  }
  EXPECT_GE(cases, 1000);
}

TEST(LowerBoundTest, PublishedBubbleRatesAreTheBound) {
  // arXiv 2401.10241, tables 5 and 9: no schedule can beat what ZB-1p and ZB-2p
  // reach for 1.5B, p = 8, m = 24.
  const Costs costs = Costs::Uniform(
      8, {18.522, 18.086, 9.337, 0.601, 201216, -127488, -73728});
  const double work = 24 * (18.522 + 18.086 + 9.337);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const double zb_1p,
      LowerBound(*StageMap::Linear(8), 24, costs, 8 * 201216));
  EXPECT_NEAR(1 - work / zb_1p, .1585, .00005);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const double zb_2p,
      LowerBound(*StageMap::Linear(8), 24, costs, 16 * 201216));
  EXPECT_NEAR(1 - work / zb_2p, .0433, .00005);
}

TEST(LowerBoundTest, LessMemoryNeverLowersIt) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 6, .chunks = 2, .microbatches = 20});
    const StageMap map = *StageMap::Zigzag(problem.ranks, problem.chunks);
    double last = 0;
    for (const int64_t limit : {0, 2000, 500, 250, 100, 80}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const double bound,
          LowerBound(map, problem.microbatches, problem.costs, limit));
      EXPECT_GE(bound, last * (1 - 1e-12)) << limit << " " << problem;
      last = bound;
    }
  }
}

TEST(LowerBoundTest, RejectsInvalidProblems) {
  const StageMap map = *StageMap::Linear(2);
  EXPECT_THAT(LowerBound(map, 1, Costs::Uniform(3, {}), 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("costs of 3 stages")));
  EXPECT_THAT(LowerBound(map, 0, Costs::Uniform(2, {}), 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("0 micro-batches; give 1 to")));
  EXPECT_THAT(LowerBound(map, 1, Costs::Uniform(2, {}), -5),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a memory limit of -5 bytes")));
}

}  // namespace
}  // namespace tessera::pipeline
