// Compares Combine with the bandwidth of memcpy.
//
// share_of_memcpy: time that memcpy needs in this run to move as many bytes
// (reads plus writes) over the time of Combine. Names: type / sources /
// stores, then the bytes of all buffers together: in the first, second and
// third-level cache of common machines, and in memory.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/testing/memcpy_bandwidth.h"
#include "benchmark/benchmark.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {
namespace {

// Buffers of equal size, offset by one cache line modulo the page size: equal
// addresses modulo 4096 would cause false dependencies between stores and
// loads.
class Buffers {
 public:
  Buffers(size_t number, size_t bytes)
      : stride_((bytes + kPage - 1) / kPage * kPage + kLine),
        memory_(number * stride_ + kPage) {
    for (std::byte& byte : memory_) byte = std::byte{0x3c};  // About 1.
    void* start = memory_.data();
    size_t space = memory_.size();
    std::align(kPage, number * stride_, start, space);
    for (size_t i = 0; i < number; ++i) {
      places_.push_back(static_cast<std::byte*>(start) + i * stride_);
    }
  }

  std::span<const void* const> sources() const {
    return {places_.data(), places_.size() - 1};
  }
  std::span<void* const> destination() { return {&places_.back(), 1}; }

 private:
  static constexpr size_t kLine = 64;
  static constexpr size_t kPage = 4096;

  size_t stride_;
  std::vector<std::byte> memory_;
  std::vector<void*> places_;
};

void BM_Combine(benchmark::State& state, DType dtype, size_t sources,
                StoreMode stores) {
  const auto footprint = static_cast<size_t>(state.range(0));
  const auto element = static_cast<size_t>(SizeInBytes(dtype));
  const size_t count = footprint / (sources + 1) / element;
  Buffers buffers(sources + 1, count * element);
  Combination combination = Combination::Partial(Reduction::Sum(), dtype);
  combination.stores = stores;
  const BandwidthMeter meter(count * element * (sources + 1));
  for (auto _ : state) {
    Combine(combination, buffers.sources(), buffers.destination(),
            static_cast<int64_t>(count));
    benchmark::ClobberMemory();
  }
  meter.Report(state);
}

// The overhead of a call: only as many elements as fit in a cache line.
void BM_TinyCombine(benchmark::State& state, DType dtype, size_t sources) {
  const int64_t count = 64 / SizeInBytes(dtype);
  Buffers buffers(sources + 1, 64);
  const Combination combination = Combination::Partial(Reduction::Sum(), dtype);
  for (auto _ : state) {
    Combine(combination, buffers.sources(), buffers.destination(), count);
    benchmark::ClobberMemory();
  }
}

void BM_CopyBytes(benchmark::State& state, StoreMode stores) {
  const auto bytes = static_cast<size_t>(state.range(0)) / 2;
  Buffers buffers(2, bytes);
  const BandwidthMeter meter(2 * bytes);
  for (auto _ : state) {
    CopyBytes(buffers.destination()[0], buffers.sources()[0],
              static_cast<int64_t>(bytes), stores);
    benchmark::ClobberMemory();
  }
  meter.Report(state);
}

void RegisterType(DType dtype) {
  const std::string type(DTypeName(dtype));
  for (size_t sources : {2, 4, 8}) {
    const std::string of = "/" + type + "/sources:" + std::to_string(sources);
    benchmark::RegisterBenchmark(
        ("TinyCombine" + of).c_str(),
        [=](benchmark::State& s) { BM_TinyCombine(s, dtype, sources); });
    benchmark::RegisterBenchmark(("Combine" + of + "/cached").c_str(),
                                 [=](benchmark::State& s) {
                                   BM_Combine(s, dtype, sources,
                                              StoreMode::kCached);
                                 })
        ->ArgName("footprint")
        ->Arg(24 << 10)
        ->Arg(512 << 10)
        ->Arg(8 << 20)
        ->Arg(256 << 20);
    benchmark::RegisterBenchmark(("Combine" + of + "/streaming").c_str(),
                                 [=](benchmark::State& s) {
                                   BM_Combine(s, dtype, sources,
                                              StoreMode::kStreaming);
                                 })
        ->ArgName("footprint")
        ->Arg(8 << 20)
        ->Arg(256 << 20);
  }
}

const bool kRegistered = [] {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
    RegisterType(dtype);
  }
  return true;
}();

BENCHMARK_CAPTURE(BM_CopyBytes, cached, StoreMode::kCached)
    ->Arg(8 << 20)
    ->Arg(256 << 20);
BENCHMARK_CAPTURE(BM_CopyBytes, streaming, StoreMode::kStreaming)
    ->Arg(8 << 20)
    ->Arg(256 << 20);

}  // namespace
}  // namespace tessera::collectives
