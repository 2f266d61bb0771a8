// Generated schedules have the bubbles that the papers give, for equal stages.
#include <algorithm>
#include <cstdint>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

constexpr StageCosts kTimes[] = {
    {.forward = 1, .backward_input = 1, .backward_weight = 1},
    {.forward = 2, .backward_input = 3, .backward_weight = 1},
    {.forward = 4, .backward_input = 3.5, .backward_weight = 2},
};

// The bubble of the rank with the longest step.
double BubbleOf(std::string_view name, const PipelineShape& shape,
                const StageCosts& times) {
  const Schedule schedule = *Generate(name, shape);
  const Costs costs = Costs::Uniform(schedule.map.stages(), times);
  const Timeline timeline = *Simulate(schedule, costs, {.traces = false});
  return timeline.makespan - timeline.ranks[0].busy;
}

double WholeTime(const StageCosts& t) {
  return t.forward + t.backward_input + t.backward_weight;
}

TEST(ClosedFormsTest, GpipeAnd1F1B) {
  for (const StageCosts& t : kTimes) {
    for (int64_t p = 1; p <= 12; ++p) {
      for (const int64_t m : {1, 2, 3, 5, 8, 12, 13, 24, 40}) {
        for (const char* name : {"gpipe", "1f1b"}) {
          const double bubble = BubbleOf(name, {p, 1, m}, t);
          const auto waits = static_cast<double>(p - 1);
          EXPECT_DOUBLE_EQ(bubble, waits * WholeTime(t));
          const double step = bubble + static_cast<double>(m) * WholeTime(t);
          EXPECT_NEAR(bubble / step, waits / static_cast<double>(m + p - 1),
                      1e-12);
        }
      }
    }
  }
}

// Each of v chunks takes 1/v of the time of the rank's layers, so the bubble is
// 1/v of 1F1B's.
TEST(ClosedFormsTest, InterleavingDividesTheBubbleByTheChunks) {
  for (const StageCosts& t : kTimes) {
    for (int64_t p = 1; p <= 10; ++p) {
      for (const int64_t v : {1, 2, 3, 4}) {
        for (const int64_t rounds : {1, 2, 3, 5}) {
          const double part = 1 / static_cast<double>(v);
          const StageCosts chunk = {
              .forward = t.forward * part,
              .backward_input = t.backward_input * part,
              .backward_weight = t.backward_weight * part};
          const double bubble =
              BubbleOf("interleaved_1f1b", {p, v, p * rounds}, chunk);
          EXPECT_NEAR(bubble, static_cast<double>(p - 1) * WholeTime(t) * part,
                      1e-9)
              << p << " ranks, " << v << " chunks";
        }
      }
    }
  }
}

TEST(ClosedFormsTest, ZbH1HasAThirdOfTheBubble) {
  for (const StageCosts& t : kTimes) {
    // F + B - W, where B is the input's gradient alone.
    const double of_rank = t.forward + t.backward_input - t.backward_weight;
    for (int64_t p = 1; p <= 12; ++p) {
      for (int64_t m = p; m <= 40; m += 3) {
        EXPECT_DOUBLE_EQ(BubbleOf("zb_h1", {p, 1, m}, t),
                         static_cast<double>(p - 1) * of_rank)
            << p << " ranks, " << m << " micro-batches";
      }
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline
