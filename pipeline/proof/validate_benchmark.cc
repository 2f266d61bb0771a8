// Time of Validate on a looped pipeline, two stages for each rank. Its floor is
// reading every action once; "of_floor" is the share of that rate reached.
#include <algorithm>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/testing/schedules.h"
#include "pipeline/proof/validate.h"

namespace tessera::pipeline {
namespace {

int64_t CountActions(const Schedule& schedule) {
  int64_t actions = 0;
  for (const auto& list : schedule.ranks) {
    actions += static_cast<int64_t>(list.size());
  }
  return actions;
}

// Seconds to read the schedule once, the best of several rounds.
double FloorSeconds(const Schedule& schedule) {
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    const absl::Time start = absl::Now();
    int64_t sum = 0;
    for (const auto& actions : schedule.ranks) {
      for (const Action& action : actions) sum += action.stage;
    }
    benchmark::DoNotOptimize(sum);
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
  }
  return best;
}

void BM_Validate(benchmark::State& state) {
  const auto schedule = AddCommunication(
      AllForwardAllBackward(*StageMap::Loop(state.range(0), 2),
                            static_cast<int32_t>(state.range(1))));
  const ValidateOptions options{.buffers = state.range(2)};
  if (!schedule.ok() || !Validate(*schedule, options).ok()) {
    state.SkipWithError("the schedule is not valid");
    return;
  }
  const double floor = FloorSeconds(*schedule);
  const absl::Time start = absl::Now();
  for (auto _ : state) {
    auto proof = Validate(*schedule, options);
    benchmark::DoNotOptimize(proof);
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start) /
                         static_cast<double>(state.iterations());
  state.counters["floor_us"] = floor * 1e6;
  state.counters["of_floor"] = floor / seconds;
  state.SetItemsProcessed(state.iterations() * CountActions(*schedule));
}
BENCHMARK(BM_Validate)
    ->ArgNames({"ranks", "microbatches", "buffers"})
    ->Args({8, 64, 0})
    ->Args({64, 1024, 0})
    ->Args({64, 1024, 2})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera::pipeline
