// Time of Simulate on generated schedules, lowered or not, with and without the
// traces. Its floor is reading every action and writing its time once;
// "of_floor" is the share of that rate reached.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

int64_t CountActions(const Schedule& schedule) {
  int64_t actions = 0;
  for (const auto& list : schedule.ranks) {
    actions += static_cast<int64_t>(list.size());
  }
  return actions;
}

// Seconds to read the actions and write a line of times, the best of several
// rounds.
double FloorSeconds(const Schedule& schedule) {
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    const absl::Time start = absl::Now();
    for (const auto& actions : schedule.ranks) {
      std::vector<TimedAction> line;
      line.reserve(actions.size());
      double now = 0;
      for (const Action& action : actions) {
        line.push_back({action, now, now + 1});
        now += 1;
      }
      benchmark::DoNotOptimize(line.data());
      benchmark::ClobberMemory();
    }
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
  }
  return best;
}

Costs MakeCosts(int64_t stages, bool links) {
  Costs costs = Costs::Uniform(stages, {.forward = 10.4,
                                        .backward_input = 10.2,
                                        .backward_weight = 7.7,
                                        .communication = 0.46});
  if (links) {
    costs.links.everywhere = {.latency = 0.01, .bandwidth = 1e6};
    for (StageCosts& stage : costs.stages) {
      stage.activation_bytes = stage.gradient_bytes = 500'000;
    }
  }
  return costs;
}

void Measure(benchmark::State& state, const Schedule& schedule,
             const Costs& costs, const SimulateOptions& options) {
  if (!Simulate(schedule, costs, options).ok()) {
    state.SkipWithError("the schedule cannot be completed");
    return;
  }
  const double floor = FloorSeconds(schedule);
  const absl::Time start = absl::Now();
  for (auto _ : state) {
    auto timeline = Simulate(schedule, costs, options);
    benchmark::DoNotOptimize(timeline);
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start) /
                         static_cast<double>(state.iterations());
  state.counters["floor_us"] = floor * 1e6;
  state.counters["of_floor"] = floor / seconds;
  state.SetItemsProcessed(state.iterations() * CountActions(schedule));
}

// Arguments: ranks, chunks, micro-batches, traces, links.
void BM_Simulate(benchmark::State& state) {
  const auto schedule =
      Generate(state.range(1) == 1 ? "zb_h1" : "interleaved_1f1b",
               {state.range(0), state.range(1), state.range(2)});
  if (!schedule.ok()) return state.SkipWithError("no such schedule");
  Measure(state, *schedule,
          MakeCosts(schedule->map.stages(), state.range(4) != 0),
          {.traces = state.range(3) != 0});
}
BENCHMARK(BM_Simulate)
    ->ArgNames({"ranks", "chunks", "microbatches", "traces", "links"})
    ->Args({8, 1, 64, 1, 0})
    ->Args({32, 1, 256, 0, 0})
    ->Args({32, 1, 256, 1, 0})
    ->Args({32, 1, 256, 1, 1})
    ->Args({64, 2, 1024, 0, 0})
    ->Args({64, 2, 1024, 1, 0})
    ->Unit(benchmark::kMicrosecond);

// With sends and receives that do or do not overlap with computation.
void BM_SimulateLowered(benchmark::State& state) {
  const auto schedule =
      Generate("interleaved_1f1b", {state.range(0), 2, state.range(1)});
  if (!schedule.ok()) return state.SkipWithError("no such schedule");
  const auto lowered = AddCommunication(*schedule);
  if (!lowered.ok()) return state.SkipWithError("cannot be lowered");
  Costs costs = MakeCosts(lowered->map.stages(), /*links=*/true);
  costs.overlap_communication = state.range(2) != 0;
  Measure(state, *lowered, costs, {});
}
BENCHMARK(BM_SimulateLowered)
    ->ArgNames({"ranks", "microbatches", "overlap"})
    ->Args({64, 1024, 1})
    ->Args({64, 1024, 0})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tessera::pipeline
