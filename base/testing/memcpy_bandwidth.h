// The bandwidth of memcpy: a floor for operations that move bytes.
//
//   BandwidthMeter meter(bytes_moved_per_iteration);
//   for (auto _ : state) { ... }
//   meter.Report(state);
//
// Benchmarks measure it in the same run as the operations they compare.
#ifndef TESSERA_BASE_TESTING_MEMCPY_BANDWIDTH_H_
#define TESSERA_BASE_TESTING_MEMCPY_BANDWIDTH_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"

namespace tessera {

// Bytes per second, reads plus writes, in the best of several passes. Source
// and target have `footprint` bytes together.
inline double MemcpyBandwidth(size_t footprint) {
  using Clock = std::chrono::steady_clock;
  const size_t half = footprint / 2;
  std::vector<char> source(half, 1), target(half, 2);
  const size_t repeats = std::max<size_t>(1, (size_t{64} << 20) / footprint);
  double best = 0;
  for (int pass = 0; pass < 10; ++pass) {
    const auto start = Clock::now();
    for (size_t i = 0; i < repeats; ++i) {
      std::memcpy(target.data(), source.data(), half);
      benchmark::DoNotOptimize(target.data());
      benchmark::ClobberMemory();
    }
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best,
                    static_cast<double>(repeats * half * 2) / seconds.count());
  }
  return best;
}

// Times a benchmark's loop, which starts when the meter is made.
class BandwidthMeter {
 public:
  // `bytes` are read plus written by one iteration.
  explicit BandwidthMeter(size_t bytes)
      : bytes_(static_cast<double>(bytes)), floor_(MemcpyBandwidth(bytes)) {}

  // Sets three counters: the bandwidth, memcpy's bandwidth in this run, and the
  // ratio of the two.
  void Report(benchmark::State& state) const {
    const std::chrono::duration<double> seconds = Clock::now() - start_;
    const double bandwidth =
        bytes_ * static_cast<double>(state.iterations()) / seconds.count();
    state.counters["GB/s"] = bandwidth / 1e9;
    state.counters["memcpy_GB/s"] = floor_ / 1e9;
    state.counters["share_of_memcpy"] = bandwidth / floor_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const double bytes_;
  const double floor_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace tessera

#endif  // TESSERA_BASE_TESTING_MEMCPY_BANDWIDTH_H_
