// CRC-32C compared with reading the same bytes: share_of_read is the time to
// sum the bytes in this run divided by the time of the checksum.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "benchmark/benchmark.h"
#include "offload/file/crc32c.h"

namespace tessera::offload {
namespace {

double SecondsToSum(const std::vector<uint64_t>& words) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(
        std::accumulate(words.begin(), words.end(), uint64_t{0}));
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

void BM_Crc32c(benchmark::State& state, bool portable) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<uint64_t> words(bytes / 8, 0x0123456789abcdef);
  const auto data = std::as_bytes(std::span(words));
  const double floor = SecondsToSum(words);
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    benchmark::DoNotOptimize(portable ? crc32c_internal::ExtendPortable(0, data)
                                      : Crc32c(data));
  }
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  state.SetBytesProcessed(state.iterations() * state.range(0));
  state.counters["share_of_read"] =
      floor * static_cast<double>(state.iterations()) / took.count();
}

BENCHMARK_CAPTURE(BM_Crc32c, best, false)->Arg(64 << 10)->Arg(64 << 20);
BENCHMARK_CAPTURE(BM_Crc32c, portable, true)->Arg(64 << 10);

}  // namespace
}  // namespace tessera::offload
