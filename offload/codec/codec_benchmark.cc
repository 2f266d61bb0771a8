// Encode and Decode compared with the bandwidth of memcpy.
//
// GB/s counts the bytes of the values. share_of_memcpy: the time that memcpy
// needs in this run to move as many bytes as the codec reads and writes,
// divided by the time of the codec. ratio: bytes of the values divided by
// encoded bytes. Values are normally distributed, like weights.
#include <time.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/dtype/dtype.h"
#include "base/testing/memcpy_bandwidth.h"
#include "benchmark/benchmark.h"
#include "offload/codec/codec.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {
namespace {

enum class Way { kEncode, kDecode };

// CPU time of this thread, which does all the work; excludes other load on the
// machine.
double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void BM_Codec(benchmark::State& state, std::string_view name, DType dtype,
              Way way) {
  const std::unique_ptr<Codec> codec = CreateCodec(name).value();
  const auto bytes = static_cast<size_t>(state.range(0));
  const int64_t count = static_cast<int64_t>(bytes) / SizeInBytes(dtype);
  Bytes values = NormalArray(dtype, static_cast<size_t>(count), 0.02, 1);
  Bytes room(codec->MaxEncodedBytes(dtype, count).value());
  const auto held =
      static_cast<size_t>(codec->Encode(dtype, values, room).value());
  const std::span<const std::byte> encoded = std::span(room).first(held);

  const double memcpy_bandwidth = MemcpyBandwidth(values.size() + held);
  const double start = CpuSeconds();
  for (auto _ : state) {
    if (way == Way::kEncode) {
      benchmark::DoNotOptimize(codec->Encode(dtype, values, room));
    } else {
      benchmark::DoNotOptimize(codec->Decode(dtype, encoded, values));
    }
    benchmark::ClobberMemory();
  }
  const double passes =
      static_cast<double>(state.iterations()) / (CpuSeconds() - start);
  const double size = static_cast<double>(values.size());
  const double moved = size + static_cast<double>(held);
  state.counters["GB/s"] = size * passes / 1e9;
  state.counters["memcpy_GB/s"] = memcpy_bandwidth / 1e9;
  state.counters["share_of_memcpy"] = moved * passes / memcpy_bandwidth;
  state.counters["ratio"] = size / static_cast<double>(held);
}

void RegisterAll() {
  for (const std::string_view name : CodecNames()) {
    if (name == "quantization" || !CreateCodec(name).ok()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const Way way : {Way::kEncode, Way::kDecode}) {
        const std::string title = std::string(name) + "/" +
                                  std::string(DTypeName(dtype)) +
                                  (way == Way::kEncode ? "/encode" : "/decode");
        benchmark::RegisterBenchmark(
            title.c_str(),
            [=](benchmark::State& s) { BM_Codec(s, name, dtype, way); })
            ->ArgName("bytes")
            ->Arg(1 << 20)
            ->Arg(64 << 20);
      }
    }
  }
}

const bool kRegistered = (RegisterAll(), true);

}  // namespace
}  // namespace tessera::offload
