// Compares conversions with the bandwidth of memcpy.
//
// share_of_memcpy is memcpy's time in this run for as many bytes (reads plus
// writes), divided by the time of the conversion.
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"
#include "base/testing/memcpy_bandwidth.h"
#include "benchmark/benchmark.h"

namespace tessera {
namespace {

void BM_Convert(benchmark::State& state, DType from, DType to) {
  const auto footprint = static_cast<size_t>(state.range(0));
  const auto per_element =
      static_cast<size_t>(SizeInBytes(from) + SizeInBytes(to));
  const size_t count = footprint / per_element;
  std::vector<std::byte> source(count * static_cast<size_t>(SizeInBytes(from)));
  std::vector<std::byte> target(count * static_cast<size_t>(SizeInBytes(to)));
  // Ordinary values around 1.
  std::vector<float> ones(count, 1.25f);
  if (!Convert(DType::kF32, std::as_bytes(std::span(ones)), from, source)
           .ok()) {
    state.SkipWithError("cannot prepare the source");
  }
  const BandwidthMeter meter(count * per_element);
  for (auto _ : state) {
    benchmark::DoNotOptimize(Convert(from, source, to, target));
    benchmark::ClobberMemory();
  }
  meter.Report(state);
  state.counters["bytes/element"] = static_cast<double>(per_element);
}

void RegisterAll() {
  const std::pair<DType, DType> pairs[] = {
      {DType::kF32, DType::kBF16},   {DType::kBF16, DType::kF32},
      {DType::kF32, DType::kF16},    {DType::kF16, DType::kF32},
      {DType::kF32, DType::kF8E4M3}, {DType::kF8E4M3, DType::kF32},
      {DType::kF32, DType::kF8E5M2}, {DType::kF16, DType::kBF16},
      {DType::kF32, DType::kF64},    {DType::kF64, DType::kF32},
      {DType::kF32, DType::kI8},     {DType::kI64, DType::kF32},
      {DType::kF64, DType::kF16},
  };
  for (const auto& [from, to] : pairs) {
    const std::string name = std::string("Convert/") +
                             std::string(DTypeName(from)) + "_to_" +
                             std::string(DTypeName(to));
    const DType a = from, b = to;
    benchmark::RegisterBenchmark(
        name.c_str(), [a, b](benchmark::State& s) { BM_Convert(s, a, b); })
        ->ArgName("footprint")
        ->Arg(256 << 10)
        ->Arg(256 << 20);
  }
}

const bool kRegistered = (RegisterAll(), true);

}  // namespace
}  // namespace tessera
