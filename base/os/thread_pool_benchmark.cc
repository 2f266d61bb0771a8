// The cost of a ThreadPool loop with one empty pass for each thread. Loops are
// `idle_us` apart: spinning threads start the next loop immediately, sleeping
// threads must be woken.
//
//   bazel run //base/os:thread_pool_benchmark
#include <chrono>
#include <cstdint>
#include <thread>

#include "base/os/processors.h"
#include "base/os/thread_pool.h"
#include "benchmark/benchmark.h"

namespace tessera {
namespace {

void BM_Loop(benchmark::State& state) {
  const auto threads = static_cast<int>(AvailableProcessors());
  ThreadPool pool(threads);
  const auto idle = std::chrono::microseconds(state.range(0));
  using Clock = std::chrono::steady_clock;
  for ([[maybe_unused]] auto _ : state) {
    if (idle.count() >= 1000) {
      std::this_thread::sleep_for(idle);
    } else {
      const auto end = Clock::now() + idle;
      while (Clock::now() < end) SpinPause();
    }
    const auto begin = Clock::now();
    pool.Run(threads, [](int64_t pass) { benchmark::DoNotOptimize(pass); });
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    state.SetIterationTime(seconds.count());
  }
  state.counters["threads"] = threads;
}
BENCHMARK(BM_Loop)
    ->ArgName("idle_us")
    ->Arg(0)
    ->Arg(10)
    ->Arg(2000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tessera
