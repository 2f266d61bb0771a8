// First weights: numbers drawn per second by one thread, and by all. The limit
// is the time of the intervals alone (internal::BoundNormals): generator,
// logarithm, root, sine and cosine.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/os/processors.h"
#include "base/os/thread_pool.h"
#include "benchmark/benchmark.h"
#include "tensor_parallel/random/philox.h"
#include "tensor_parallel/random/rounded_normals.h"

namespace tessera::tensor_parallel {
namespace {

constexpr RandomKey kKey = {.seed = 1, .stream = 2};
constexpr int64_t kCount = int64_t{1} << 20;
constexpr int64_t kPart = 4096;

double Seconds(const auto& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Of one thread, for kCount numbers.
double SecondsOfIntervals() {
  std::vector<double> low(512), high(512);
  double best = 1;
  for (int repeat = 0; repeat < 10; ++repeat) {
    best = std::min(
        best, Seconds([&] {
          for (int64_t i = 0; i < kCount; i += 512) {
            internal::BoundNormals({.key = kKey,
                                    .first_pair = static_cast<uint64_t>(i / 2),
                                    .low = std::span(low),
                                    .high = std::span(high)});
            benchmark::DoNotOptimize(low.data());
          }
        }));
  }
  return best;
}

void ReportShare(benchmark::State& state, int64_t threads) {
  const auto drawn =
      static_cast<double>(state.iterations()) * static_cast<double>(kCount);
  state.counters["numbers_per_second"] =
      benchmark::Counter(drawn, benchmark::Counter::kIsRate);
  state.counters["share_of_limit"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * SecondsOfIntervals() /
          static_cast<double>(threads),
      benchmark::Counter::kIsRate);
}

void BM_Scalar(benchmark::State& state) {
  std::vector<double> values(kPart);
  for (auto _ : state) {
    for (int64_t i = 0; i < kCount; i += kPart) {
      Philox(kKey).FillNormal(static_cast<uint64_t>(i), std::span(values));
      benchmark::DoNotOptimize(values.data());
    }
  }
  ReportShare(state, 1);
}

void BM_Rounded(benchmark::State& state, DType dtype, int64_t threads) {
  const auto width = static_cast<size_t>(SizeInBytes(dtype));
  std::vector<std::byte> values(kCount * width);
  ThreadPool pool(static_cast<int>(threads));
  for (auto _ : state) {
    pool.Run(kCount / kPart, [&](int64_t part) {
      const auto first = static_cast<uint64_t>(part * kPart);
      FillRoundedNormals(
          kKey, first, 0.02, dtype,
          std::span(values).subspan(first * width, kPart * width))
          .IgnoreError();
    });
    benchmark::ClobberMemory();
  }
  ReportShare(state, threads);
}

const bool kRegistered = [] {
  benchmark::RegisterBenchmark("scalar_f64", BM_Scalar)->UseRealTime();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t threads : {int64_t{1}, AvailableProcessors()}) {
      const std::string name = "rounded_" + std::string(DTypeName(dtype)) +
                               "/threads:" + std::to_string(threads);
      benchmark::RegisterBenchmark(name.c_str(), BM_Rounded, dtype, threads)
          ->UseRealTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace tessera::tensor_parallel
