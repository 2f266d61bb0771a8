// Draws 64 ranks x 1024 micro-batches; the floor is a copy of the output.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>

#include "benchmark/benchmark.h"
#include "pipeline/draw/perfetto.h"
#include "pipeline/draw/svg.h"
#include "pipeline/draw/terminal.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

using Draw = std::function<std::string(const Exhibit&)>;

Exhibit Large() {
  const Schedule schedule =
      *Generate("zb_h1", {.ranks = 64, .chunks = 1, .microbatches = 1024});
  return {"zb_h1", *Simulate(schedule, Costs::Uniform(64, {})), 0};
}

// Seconds to copy `text` once, a lower bound for writing it.
double SecondsToCopy(const std::string& text) {
  std::string copy(text.size(), '\0');
  double best = 1;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    std::memcpy(copy.data(), text.data(), text.size());
    benchmark::DoNotOptimize(copy.data());
    benchmark::ClobberMemory();
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count());
  }
  return best;
}

void BM_Draw(benchmark::State& state, const Draw& draw) {
  const Exhibit exhibit = Large();
  std::string text;
  const auto begin = std::chrono::steady_clock::now();
  for (auto _ : state) text = draw(exhibit);
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - begin;
  const auto bytes = static_cast<double>(text.size());
  state.counters["bytes"] = bytes;
  state.counters["actions/s"] = benchmark::Counter(
      64.0 * 3 * 1024, benchmark::Counter::kIsIterationInvariantRate);
  const double floor = SecondsToCopy(text);
  state.counters["floor_s"] = floor;
  state.counters["share"] =
      floor * static_cast<double>(state.iterations()) / time.count();
}

BENCHMARK_CAPTURE(BM_Draw, svg, [](const Exhibit& exhibit) {
  return *DrawSvg({&exhibit, 1});
})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Draw, perfetto, [](const Exhibit& exhibit) {
  return *DrawPerfetto({&exhibit, 1});
})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Draw, terminal, [](const Exhibit& exhibit) {
  return *DrawTerminal({&exhibit, 1});
})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera::pipeline
