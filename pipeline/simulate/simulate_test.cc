#include "pipeline/simulate/simulate.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

constexpr ActionKind kF = ActionKind::kForward;
constexpr ActionKind kB = ActionKind::kBackward;

Schedule Empty(int32_t ranks, int32_t microbatches) {
  Schedule schedule;
  schedule.map = *StageMap::Linear(ranks);
  schedule.microbatches = microbatches;
  schedule.ranks.resize(static_cast<size_t>(ranks));
  return schedule;
}

Schedule Gpipe(int32_t ranks, int32_t microbatches) {
  Schedule schedule = Empty(ranks, microbatches);
  for (int32_t r = 0; r < ranks; ++r) {
    auto& actions = schedule.ranks[static_cast<size_t>(r)];
    for (int32_t m = 0; m < microbatches; ++m) actions.push_back({kF, r, m});
    for (int32_t m = 0; m < microbatches; ++m) actions.push_back({kB, r, m});
  }
  return schedule;
}

Schedule OneForwardOneBackward(int32_t ranks, int32_t microbatches) {
  Schedule schedule = Empty(ranks, microbatches);
  for (int32_t r = 0; r < ranks; ++r) {
    auto& actions = schedule.ranks[static_cast<size_t>(r)];
    int32_t forward = 0;
    for (; forward < std::min(ranks - 1 - r, microbatches); ++forward) {
      actions.push_back({kF, r, forward});
    }
    for (int32_t m = 0; m < microbatches; ++m) {
      if (forward < microbatches) actions.push_back({kF, r, forward++});
      actions.push_back({kB, r, m});
    }
  }
  return schedule;
}

// By relaxation instead of events: begins increase until all constraints hold.
double SlowMakespan(const Schedule& schedule, const Costs& costs) {
  std::vector<std::vector<double>> ends;
  for (const auto& actions : schedule.ranks) ends.emplace_back(actions.size());
  const auto end_of = [&](auto matches, int32_t stage, int32_t microbatch) {
    for (size_t r = 0; r < ends.size(); ++r) {
      for (size_t i = 0; i < ends[r].size(); ++i) {
        const Action& a = schedule.ranks[r][i];
        if (matches(a.kind) && a.stage == stage && a.microbatch == microbatch) {
          return std::pair(r, ends[r][i]);
        }
      }
    }
    return std::pair(size_t{0}, 0.0);
  };
  const auto is_forward = [](ActionKind kind) { return kind == kF; };
  const auto stages = static_cast<int32_t>(schedule.map.stages());
  double last = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < ends.size(); ++r) {
      for (size_t i = 0; i < ends[r].size(); ++i) {
        const Action& a = schedule.ranks[r][i];
        double begin = i == 0 ? 0 : ends[r][i - 1];
        const auto after = [&](auto matches, int32_t stage) {
          const auto [rank, end] = end_of(matches, stage, a.microbatch);
          const double comm =
              costs.stages[static_cast<size_t>(stage)].communication;
          begin = std::max(begin, end + (rank == r ? 0 : comm));
        };
        if (a.kind == kF && a.stage > 0) after(is_forward, a.stage - 1);
        if (GivesInputGradient(a.kind)) {
          after(is_forward, a.stage);
          if (a.stage + 1 < stages) after(GivesInputGradient, a.stage + 1);
        }
        const double end =
            begin + costs.stages[static_cast<size_t>(a.stage)].TimeOf(a.kind);
        changed = changed || end > ends[r][i];
        ends[r][i] = std::max(ends[r][i], end);
        last = std::max(last, end);
      }
    }
  }
  return last;
}

TEST(SimulateTest, ClosedFormsOfGpipeAnd1F1BHold) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = 1; m <= 20; ++m) {
      const Costs costs = Costs::Uniform(p, {2, 3, 1, 0});
      for (const Schedule& schedule :
           {Gpipe(p, m), OneForwardOneBackward(p, m)}) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                     Simulate(schedule, costs));
        EXPECT_EQ(timeline.makespan, 6.0 * (m + p - 1));
        EXPECT_EQ(timeline.longest_stage, timeline.makespan);  // Of rank 0.
        EXPECT_NEAR(timeline.BubbleRate(), (p - 1.0) / (m + p - 1), 1e-12);
      }
    }
  }
}

TEST(SimulateTest, AgreesWithRelaxationForUnequalStages) {
  for (int32_t p = 1; p <= 4; ++p) {
    for (int32_t m = 1; m <= 5; ++m) {
      Costs costs;
      for (int32_t s = 0; s < p; ++s) {
        costs.stages.push_back(
            {1.0 + s % 3, 2.0 + (s * 7) % 4, 0.5 + s % 2, 0.25 * (s % 3)});
      }
      for (const Schedule& schedule :
           {Gpipe(p, m), OneForwardOneBackward(p, m)}) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                     Simulate(schedule, costs));
        EXPECT_DOUBLE_EQ(timeline.makespan, SlowMakespan(schedule, costs));
      }
    }
  }
}

TEST(SimulateTest, PublishedBubbleRatesOf1F1BAreReproduced) {
  // arXiv 2401.10241: profiled times from table 9, bubble rates from table 5.
  const struct {
    int32_t p, m;
    StageCosts costs;
    double rate;
  } kRows[] = {
      {8, 24, {18.522, 18.086, 9.337, 0.601}, .2431},
      {32, 256, {10.402, 10.248, 7.698, 0.460}, .1352},
  };
  for (const auto& row : kRows) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                 Simulate(OneForwardOneBackward(row.p, row.m),
                                          Costs::Uniform(row.p, row.costs)));
    EXPECT_NEAR(timeline.BubbleRate(), row.rate, 0.003);
  }
}

TEST(SimulateTest, MemoryIsCountedWhileItIsHeld) {
  const int32_t p = 4, m = 6;
  StageCosts costs;
  costs.forward_bytes = 100;
  costs.backward_input_bytes = -60;
  costs.backward_weight_bytes = -40;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline all,
                               Simulate(Gpipe(p, m), Costs::Uniform(p, costs)));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Timeline few,
      Simulate(OneForwardOneBackward(p, m), Costs::Uniform(p, costs)));
  for (int32_t rank = 0; rank < p; ++rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(all.ranks[r].peak_activations, m);
    EXPECT_EQ(all.ranks[r].peak_bytes, 100 * m);
    EXPECT_EQ(few.ranks[r].peak_activations, std::min(p - rank, m));
    EXPECT_EQ(few.ranks[r].peak_bytes, 100 * std::min(p - rank, m));
  }
}

TEST(SimulateTest, DescribesInfeasibleSchedules) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule stuck,
                               ReadCsv("0F0,0B0\n1B0,1F0\n"));
  EXPECT_THAT(Simulate(stuck, Costs::Uniform(2, {})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0, action 1 (0B0) waits forever for "
                                 "1B0")));
  Schedule wrong = Gpipe(2, 2);
  wrong.ranks[1][0].microbatch = 2;
  EXPECT_THAT(Simulate(wrong, Costs::Uniform(2, {})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 1, action 0 (1F2)")));
  wrong = Gpipe(2, 2);
  std::swap(wrong.ranks[0], wrong.ranks[1]);
  EXPECT_THAT(Simulate(wrong, Costs::Uniform(2, {})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("(1F0) belongs to rank 1")));
  wrong.ranks.pop_back();
  EXPECT_THAT(Simulate(wrong, Costs::Uniform(2, {})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("lists of 1 ranks for a map of 2")));
  wrong = Gpipe(2, 2);
  wrong.microbatches = -1;
  EXPECT_THAT(Simulate(wrong, Costs::Uniform(2, {})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("-1 micro-batches in 2 stages")));
  EXPECT_THAT(Simulate(Gpipe(2, 2), Costs::Uniform(3, {})),
              StatusIs(absl::StatusCode::kInvalidArgument));
  StageCosts negative;
  negative.forward = -1;
  EXPECT_THAT(Simulate(Gpipe(2, 2), Costs::Uniform(2, negative)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a time of -1 in stage 0")));
}

}  // namespace
}  // namespace tessera::pipeline
