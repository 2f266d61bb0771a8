// Time of Synthesize and the quality of its result: the bubble rate (percent),
// and the gap (percent) to the proven lower bound, which is the floor.
#include <cstdint>
#include <string>

#include "benchmark/benchmark.h"
#include "pipeline/synthesize/synthesize.h"

namespace tessera::pipeline {
namespace {

// arXiv 2401.10241: profiled times (milliseconds) of its models, and the bytes
// of an activation, times sequence and micro-batch: 34 h + 5 a s for a forward,
// of which 32 h are left for the weights' gradients (1.5B: h = 2304, a = 24;
// 28.3B: h = 6144, a = 48; s = 1024).
StageCosts Model1B5() {
  return {18.522, 18.086, 9.337, 0.601, 201216, -127488, -73728};
}
StageCosts Model28B3() {
  return {10.402, 10.248, 7.698, 0.460, 454656, -258048, -196608};
}

// A pipeline with unequal stages, like real ones.
Costs Uneven(int64_t stages, const StageCosts& costs) {
  Costs uneven = Costs::Uniform(stages, costs);
  for (size_t s = 0; s < uneven.stages.size(); ++s) {
    const double factor = 1 + 0.1 * static_cast<double>((s * 7) % 5);
    uneven.stages[s].forward *= factor;
    uneven.stages[s].backward_input *= factor;
    uneven.stages[s].backward_weight *= 2 - factor / 2;
    uneven.stages[s].communication *= factor;
  }
  return uneven;
}

void Run(benchmark::State& state, const SynthesisProblem& problem) {
  absl::StatusOr<Synthesis> best = absl::UnknownError("not run");
  for (auto _ : state) {
    best = Synthesize(problem);
    if (!best.ok()) {
      state.SkipWithError(std::string(best.status().message()).c_str());
      return;
    }
  }
  state.counters["bubble_%"] = 100 * best->timeline.BubbleRate();
  state.counters["gap_%"] = 100 * best->gap;
  state.counters["makespan"] = best->timeline.makespan;
  state.counters["longest"] = best->timeline.longest_stage;
  state.SetLabel(best->origin);
}

// Ranks, micro-batches, and the limit in forwards (1F1B's is the ranks').
void BM_Published1B5(benchmark::State& state) {
  SynthesisProblem problem{.ranks = state.range(0),
                           .microbatches = state.range(1)};
  problem.costs = Costs::Uniform(problem.ranks, Model1B5());
  problem.memory_limit = state.range(2) * Model1B5().forward_bytes;
  Run(state, problem);
}
void BM_Published28B3(benchmark::State& state) {
  SynthesisProblem problem{.ranks = state.range(0),
                           .microbatches = state.range(1)};
  problem.costs = Costs::Uniform(problem.ranks, Model28B3());
  problem.memory_limit = state.range(2) * Model28B3().forward_bytes;
  Run(state, problem);
}
void BM_Uneven(benchmark::State& state) {
  SynthesisProblem problem{.ranks = state.range(0),
                           .microbatches = state.range(1)};
  problem.costs = Uneven(problem.ranks, Model1B5());
  problem.memory_limit = state.range(2) * Model1B5().forward_bytes;
  Run(state, problem);
}
// Two chunks, each of half a stage.
void BM_TwoChunks(benchmark::State& state) {
  SynthesisProblem problem{
      .ranks = state.range(0), .chunks = 2, .microbatches = state.range(1)};
  StageCosts half = Model1B5();
  half.forward /= 2;
  half.backward_input /= 2;
  half.backward_weight /= 2;
  half.forward_bytes /= 2;
  half.backward_input_bytes /= 2;
  half.backward_weight_bytes /= 2;
  problem.costs = Costs::Uniform(2 * problem.ranks, half);
  problem.memory_limit = state.range(2) * half.forward_bytes;
  Run(state, problem);
}
BENCHMARK(BM_Published1B5)
    ->ArgNames({"ranks", "microbatches", "forwards"})
    ->Args({8, 24, 8})
    ->Args({8, 24, 16})
    ->Args({8, 64, 8})
    ->Args({8, 64, 16})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Published28B3)
    ->ArgNames({"ranks", "microbatches", "forwards"})
    ->Args({32, 256, 32})
    ->Args({32, 256, 64})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Uneven)
    ->ArgNames({"ranks", "microbatches", "forwards"})
    ->Args({8, 64, 4})
    ->Args({8, 64, 8})
    ->Args({8, 64, 16})
    ->Args({32, 256, 32})
    ->Args({32, 256, 64})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_TwoChunks)
    ->ArgNames({"ranks", "microbatches", "halves"})
    ->Args({8, 64, 6})
    ->Args({8, 64, 10})
    ->Args({8, 64, 16})
    ->Args({8, 64, 32})
    ->Args({32, 256, 64})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera::pipeline
