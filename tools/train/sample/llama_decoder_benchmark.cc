// Benchmarks decoding after a prompt, one token at a time.
//
// Counters: tokens per second; GB/s of weights, each of which is read once per
// token; and share_of_triad, the latter divided by the bandwidth of one
// thread's triad in the same run (offload/optimizer/testing/triad.h). Keys and
// values are not counted.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "offload/optimizer/testing/triad.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/sample/llama_decoder.h"
#include "tools/train/testing/random_weights.h"

namespace tessera::train {
namespace {

void DecodeToken(benchmark::State& state, const char* preset) {
  model_files::ModelConfig config = *model_files::PresetConfig(preset);
  RandomWeights reader(config);
  LlamaWeights weights = *LlamaWeights::Read(reader, DType::kF32);
  tensor_parallel::CpuOps ops({.threads = 1});
  const int64_t prompt = state.range(0);
  auto decoder = *LlamaDecoder::Create(weights, ops, prompt + 64);
  auto triad = *offload::Triad::Create(1, int64_t{1} << 28);
  const std::vector<int64_t> tokens(static_cast<size_t>(prompt), 'a');
  double bandwidth = 0, seconds = 0;
  for (auto _ : state) {
    if (decoder->length() == 0 || decoder->length() == decoder->capacity()) {
      decoder->Clear();
      benchmark::DoNotOptimize(decoder->Append(tokens));
      bandwidth = std::max(bandwidth, triad->Measure().best());
    }
    const auto start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(decoder->Append({{'b'}}));
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - start;
    state.SetIterationTime(time.count());
    seconds += time.count();
  }
  // Each token reads only one row of the embedding, so the table is not
  // counted.
  const auto bytes = static_cast<double>(
      4 * (config.ParameterCount() - config.vocabulary * config.hidden));
  const double tokens_per_second =
      static_cast<double>(state.iterations()) / seconds;
  state.counters["tokens/s"] = tokens_per_second;
  state.counters["GB/s"] = tokens_per_second * bytes / 1e9;
  state.counters["share_of_triad"] = tokens_per_second * bytes / bandwidth;
}

BENCHMARK_CAPTURE(DecodeToken, llama_10m, "llama-10m")
    ->Arg(16)
    ->Arg(1024)
    ->UseManualTime();
BENCHMARK_CAPTURE(DecodeToken, llama_50m, "llama-50m")
    ->Arg(16)
    ->Arg(1024)
    ->UseManualTime();

}  // namespace
}  // namespace tessera::train
