#include "pipeline/synthesize/synthesize.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <stop_token>
#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/validate.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/synthesize/lower_bound.h"
#include "pipeline/synthesize/testing/oracle.h"
#include "pipeline/synthesize/testing/random_problem.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

int64_t PeakOf(const Timeline& timeline) {
  int64_t peak = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    peak = std::max(peak, rank.peak_bytes);
  }
  return peak;
}

// Checks that the result and its lowered form are valid and its figures
// correct.
void CheckResult(const SynthesisProblem& problem, const Synthesis& result) {
  EXPECT_EQ(result.schedule.name, "auto");
  EXPECT_EQ(result.schedule.microbatches, problem.microbatches);
  EXPECT_EQ(result.schedule.map.ranks(), problem.ranks);
  EXPECT_FALSE(result.origin.empty());
  TESSERA_ASSERT_OK(
      Validate(result.schedule, {.communication = Communication::kImplied}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule lowered,
                               AddCommunication(result.schedule));
  TESSERA_ASSERT_OK(
      Validate(lowered, {.communication = Communication::kExplicit}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                               Simulate(result.schedule, problem.costs));
  EXPECT_EQ(timeline.longest_stage, result.timeline.longest_stage);
  EXPECT_EQ(timeline.makespan, result.timeline.makespan);
  if (problem.memory_limit > 0) {
    EXPECT_LE(PeakOf(timeline), problem.memory_limit);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const double bound, LowerBound(result.schedule.map, problem.microbatches,
                                     problem.costs, problem.memory_limit));
  EXPECT_EQ(bound, result.lower_bound);
  EXPECT_LE(bound, timeline.longest_stage * (1 + 1e-12));
  if (bound > 0) {
    EXPECT_NEAR(result.gap, timeline.longest_stage / bound - 1, 1e-9);
  }
}

// The shortest times of generators within the limit; those with two-way maps
// count only for the preferred time.
struct Least {
  double longest_stage = 1e300;
  double makespan = 1e300;
};

Least LeastOfGenerators(const SynthesisProblem& problem,
                        bool prefer_makespan = false) {
  Least least;
  for (const std::string_view name : GeneratorNames()) {
    const auto schedule =
        Generate(name, {problem.ranks, problem.chunks, problem.microbatches});
    if (!schedule.ok()) continue;
    if (problem.map && schedule->map != *problem.map) continue;
    const auto timeline = Simulate(*schedule, problem.costs);
    if (!timeline.ok()) continue;  // Another number of stages.
    if (problem.memory_limit > 0 && PeakOf(*timeline) > problem.memory_limit) {
      continue;
    }
    const bool both = !schedule->map.two_way();
    if (both || !prefer_makespan) {
      least.longest_stage =
          std::min(least.longest_stage, timeline->longest_stage);
    }
    if (both || prefer_makespan) {
      least.makespan = std::min(least.makespan, timeline->makespan);
    }
  }
  return least;
}

struct Tally {
  int cases = 0;
  int refused = 0;
  int not_worse_in_both = 0;
};

void Sweep(const ProblemRange& range, uint64_t seed, int cases, bool linear,
           Tally& tally) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases; ++i) {
    SynthesisProblem problem = RandomProblem(random, range);
    if (linear) problem.map = *StageMap::Linear(problem.ranks);
    const SynthesisOptions options = {.prefer_makespan = i % 4 == 0,
                                      .effort = 0.01};
    SCOPED_TRACE(::testing::Message() << i << ": " << problem);
    const auto result = Synthesize(problem, options);
    if (!result.ok()) {
      ASSERT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("no schedule was found")));
      ASSERT_EQ(LeastOfGenerators(problem).longest_stage, 1e300);
      ++tally.refused;
      continue;
    }
    if (!options.prefer_makespan) CheckResult(problem, *result);
    const Least least = LeastOfGenerators(problem, options.prefer_makespan);
    const bool longest =
        result->timeline.longest_stage <= least.longest_stage * (1 + 1e-9);
    const bool makespan =
        result->timeline.makespan <= least.makespan * (1 + 1e-9);
    EXPECT_TRUE(options.prefer_makespan ? makespan : longest);
    ++tally.cases;
    tally.not_worse_in_both += longest && makespan;
  }
}

TEST(SynthesizeTest, IsNeverWorseThanAGenerator) {
  Tally tally;
  Sweep({.ranks = 8, .microbatches = 24}, 1, 250, false, tally);
  Sweep({.ranks = 6, .microbatches = 12}, 2, 250, true, tally);
  EXPECT_GE(tally.cases, 400);
  EXPECT_GE(tally.not_worse_in_both, tally.cases * 97 / 100);
  RecordProperty("both", tally.not_worse_in_both);
  RecordProperty("cases", tally.cases);
}

TEST(SynthesizeTest, IsNeverWorseThanAGeneratorWithChunks) {
  Tally tally;
  Sweep({.ranks = 6, .chunks = 3, .microbatches = 16}, 3, 250, false, tally);
  EXPECT_GE(tally.cases, 150);
  EXPECT_GE(tally.not_worse_in_both, tally.cases * 95 / 100);
  RecordProperty("both", tally.not_worse_in_both);
  RecordProperty("cases", tally.cases);
}

TEST(SynthesizeTest, IsNeverWorseWithMessageDelays) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 120; ++i) {
    SynthesisProblem problem =
        RandomProblem(random, {.ranks = 6, .chunks = 2, .microbatches = 12});
    for (StageCosts& costs : problem.costs.stages) {
      costs.activation_bytes = static_cast<int64_t>(random() % 5);
      costs.gradient_bytes = static_cast<int64_t>(random() % 5);
      costs.optimizer = static_cast<double>(random() % 2);
    }
    problem.costs.links.everywhere = {.latency = 0.25, .bandwidth = 2};
    problem.costs.overlap_communication = random() % 2 == 0;
    SCOPED_TRACE(::testing::Message() << i << ": " << problem);
    const auto result = Synthesize(problem, {.effort = 0.01});
    if (!result.ok()) continue;
    CheckResult(problem, *result);
    EXPECT_LE(result->timeline.longest_stage,
              LeastOfGenerators(problem).longest_stage * (1 + 1e-9));
  }
}

TEST(SynthesizeTest, FindsTheBestOfAllInSmallPipelines) {
  std::mt19937_64 random(4);
  int cases = 0, best_longest = 0, best_makespan = 0;
  for (int i = 0; i < 150; ++i) {
    SynthesisProblem problem = RandomProblem(
        random, {.ranks = 3, .microbatches = i % 10 == 0 ? 3 : 2});
    problem.map = *StageMap::Linear(problem.ranks);
    const Oracle oracle =
        BestOfAll(*problem.map, static_cast<int32_t>(problem.microbatches),
                  problem.costs, problem.memory_limit, true);
    const auto longest = Synthesize(problem);
    const auto makespan = Synthesize(problem, {.prefer_makespan = true});
    ASSERT_EQ(longest.ok(), oracle.makespan < 1e300) << problem;
    ASSERT_EQ(makespan.ok(), longest.ok());
    if (!longest.ok()) continue;
    ++cases;
    // Counts the results that reach the optimum.
    best_longest +=
        longest->timeline.longest_stage <= oracle.longest_stage * (1 + 1e-9);
    best_makespan +=
        makespan->timeline.makespan <= oracle.makespan * (1 + 1e-9);
  }
  RecordProperty("cases", cases);
  RecordProperty("longest", best_longest);
  RecordProperty("makespan", best_makespan);
  EXPECT_GE(cases, 100);
  EXPECT_GE(best_longest, cases * 97 / 100);
  EXPECT_GE(best_makespan, cases * 97 / 100);
}

SynthesisProblem Published(int64_t p, int64_t m, const StageCosts& costs,
                           int64_t forwards) {
  return {.ranks = p,
          .microbatches = m,
          .costs = Costs::Uniform(p, costs),
          .memory_limit = forwards * costs.forward_bytes};
}

// arXiv 2401.10241, tables 5 and 9. Bytes are computed as in the paper: 34 h +
// 5 a s for a forward, of which 32 h remain for the weights' gradients.
constexpr StageCosts k1B5 = {18.522, 18.086,  9.337, 0.601,
                             201216, -127488, -73728};
constexpr StageCosts k28B3 = {10.402, 10.248,  7.698,  0.460,
                              454656, -258048, -196608};

TEST(SynthesizeTest, ReachesThePublishedBubbleRates) {
  const struct {
    SynthesisProblem problem;
    double rate;
  } kRows[] = {
      {Published(8, 24, k1B5, 8), .1585},
      {Published(8, 24, k1B5, 16), .0433},
      {Published(32, 256, k28B3, 32), .0594},
      {Published(32, 256, k28B3, 64), .0018},
  };
  for (const auto& [problem, rate] : kRows) {
    const SynthesisOptions options = {.effort = problem.ranks > 8 ? 0.3 : 1};
    TESSERA_ASSERT_OK_AND_ASSIGN(const Synthesis best,
                                 Synthesize(problem, options));
    EXPECT_LE(best.timeline.BubbleRate(), rate + .00005) << best.origin;
    EXPECT_LT(best.gap, .0005) << best.origin;
    EXPECT_FALSE(best.schedule.map.two_way());
    CheckResult(problem, best);
  }
}

TEST(SynthesizeTest, HoldsStagesTwiceOnlyIfDualPipeIsFaster) {
  // A pipeline with slow ends; with two ranks, each computes both ends.
  SynthesisProblem problem{.ranks = 4, .microbatches = 40};
  problem.costs = Costs::Uniform(4, {1, 1, 1, 0});
  problem.costs.stages[0] = {3, 3, 3, 0};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Synthesis best,
                               Synthesize(problem, {.effort = 0.05}));
  EXPECT_TRUE(best.schedule.map.two_way());
  CheckResult(problem, best);
  problem.map = *StageMap::Linear(4);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Synthesis linear,
                               Synthesize(problem, {.effort = 0.05}));
  EXPECT_FALSE(linear.schedule.map.two_way());
  EXPECT_LT(best.timeline.longest_stage, linear.timeline.longest_stage * 0.75);
  EXPECT_LT(linear.gap, 1e-6);
  problem.map = *StageMap::Of({3, 1, 0, 2});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Synthesis shuffled,
                               Synthesize(problem, {.effort = 0.05}));
  EXPECT_EQ(shuffled.schedule.map, *problem.map);
  CheckResult(problem, shuffled);
}

TEST(SynthesizeTest, SmallestPipelines) {
  for (const int64_t p : {1, 2, 5}) {
    for (const int64_t m : {1, 2, 3}) {
      SynthesisProblem problem{.ranks = p, .microbatches = m};
      problem.costs = Costs::Uniform(p, {2, 2, 1, 0.5});
      TESSERA_ASSERT_OK_AND_ASSIGN(const Synthesis best, Synthesize(problem));
      CheckResult(problem, best);
      if (p == 1) {
        EXPECT_EQ(best.timeline.longest_stage, 5.0 * static_cast<double>(m));
      }
      if (m == 1) {
        EXPECT_LT(best.gap, 1e-9);
      }
    }
  }
}

TEST(SynthesizeTest, AcceptsStagesOfZeroTime) {
  SynthesisProblem problem{.ranks = 3, .microbatches = 4};
  problem.costs = Costs::Uniform(3, {0, 0, 0, 0});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Synthesis best, Synthesize(problem));
  EXPECT_EQ(best.timeline.longest_stage, 0);
  EXPECT_EQ(best.gap, 0);
  CheckResult(problem, best);
}

TEST(SynthesizeTest, IsDeterministic) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 10; ++i) {
    const SynthesisProblem problem =
        RandomProblem(random, {.ranks = 5, .chunks = 2, .microbatches = 9});
    const auto a = Synthesize(problem, {.effort = 0.1});
    const auto b = Synthesize(problem, {.effort = 0.1});
    ASSERT_EQ(a.ok(), b.ok());
    if (!a.ok()) continue;
    EXPECT_EQ(a->schedule, b->schedule);
    EXPECT_EQ(a->origin, b->origin);
  }
}

TEST(SynthesizeTest, NamesSmallestFeasibleLimit) {
  std::mt19937_64 random(10);
  for (int i = 0; i < 60; ++i) {
    SynthesisProblem problem =
        RandomProblem(random, {.ranks = 4, .chunks = 3, .microbatches = 6});
    problem.memory_limit = 1;
    const auto refused = Synthesize(problem, {.effort = 0.01});
    ASSERT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("a memory limit of 1 bytes")));
    const std::string message(refused.status().message());
    const size_t at = message.find(" needs ");
    ASSERT_NE(at, std::string::npos) << message;
    problem.memory_limit = std::stoll(message.substr(at + 7));
    const auto least = Synthesize(problem, {.effort = 0.01});
    TESSERA_ASSERT_OK(least);
    CheckResult(problem, *least);
    --problem.memory_limit;
    EXPECT_FALSE(Synthesize(problem, {.effort = 0.01}).ok()) << problem;
  }
}

TEST(SynthesizeTest, RejectsInvalidProblems) {
  SynthesisProblem problem{.ranks = 2, .microbatches = 3};
  problem.costs = Costs::Uniform(2, {});
  const auto refusal = [](const SynthesisProblem& wrong,
                          const SynthesisOptions& options = {}) {
    return Synthesize(wrong, options).status();
  };
  SynthesisProblem wrong = problem;
  wrong.ranks = 0;
  EXPECT_THAT(refusal(wrong), StatusIs(absl::StatusCode::kInvalidArgument));
  wrong = problem;
  wrong.microbatches = int64_t{1} << 40;
  EXPECT_THAT(refusal(wrong), StatusIs(absl::StatusCode::kInvalidArgument));
  wrong = problem;
  wrong.chunks = 2;
  EXPECT_THAT(refusal(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("costs of 2 stages")));
  wrong = problem;
  wrong.memory_limit = -1;
  EXPECT_THAT(refusal(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("a memory limit of -1")));
  wrong = problem;
  wrong.map = *StageMap::Linear(3);
  EXPECT_THAT(refusal(wrong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a map of 3 stages on 3 ranks for 2 ranks")));
  EXPECT_THAT(refusal(problem, {.effort = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("an effort of -1")));
}

TEST(SynthesizeTest, StopsWhenAsked) {
  SynthesisProblem problem{.ranks = 8, .microbatches = 24};
  for (int i = 0; i < 8; ++i) {
    StageCosts& stage = problem.costs.stages.emplace_back();
    stage.forward = 1 + 0.13 * (i * 7 % 5);
    stage.communication = 0.2;
  }
  problem.memory_limit = 6;
  std::stop_source stop;
  std::jthread other([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop.request_stop();
  });
  // Hours, if nothing stopped it.
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(
        Synthesize(problem, {.effort = 1e5, .stop = stop.get_token()}).status(),
        StatusIs(absl::StatusCode::kCancelled));
  }
}

}  // namespace
}  // namespace tessera::pipeline
