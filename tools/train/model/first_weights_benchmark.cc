// Measures the initialization of a rank's weights: parameters per second until
// values and master weights are in memory, with one thread and with all
// processors.
//
// share_of_limit: the time that the same threads need only to compute the
// numbers (FillRoundedNormals: generator, logarithm, root, sine and cosine,
// without writing to memory), divided by the measured time. "formula" calls
// Philox::Normal for each number, with the C library.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/os/processors.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "benchmark/benchmark.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/random/philox.h"
#include "tensor_parallel/random/rounded_normals.h"
#include "tools/train/model/sharded_model.h"

namespace tessera::train {
namespace {

using tensor_parallel::Parameter;
using tensor_parallel::RandomKey;

constexpr RandomKey kKey = {.seed = 1, .stream = 2};
constexpr int64_t kRows = 4096, kColumns = 4096;
constexpr int64_t kPart = 512;

double SecondsNow() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The minimum of several runs, for kRows * kColumns parameters.
double SecondsOfIntervals(int threads) {
  ThreadPool pool(threads);
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double begin = SecondsNow();
    pool.Run(kRows * kColumns / kPart, [](int64_t part) {
      alignas(64) double low[kPart], high[kPart];
      tensor_parallel::internal::BoundNormals(
          {.key = kKey,
           .first_pair = static_cast<uint64_t>(part * kPart / 2),
           .low = low,
           .high = high});
      benchmark::DoNotOptimize(low);
      benchmark::DoNotOptimize(high);
    });
    best = std::min(best, SecondsNow() - begin);
  }
  return best;
}

void Report(benchmark::State& state, int threads) {
  const auto runs = static_cast<double>(state.iterations());
  state.counters["parameters_per_second"] =
      benchmark::Counter(runs * static_cast<double>(kRows * kColumns),
                         benchmark::Counter::kIsRate);
  state.counters["share_of_limit"] = benchmark::Counter(
      runs * SecondsOfIntervals(threads), benchmark::Counter::kIsRate);
}

void BM_Formula(benchmark::State& state) {
  const tensor_parallel::Philox random(kKey);
  std::vector<double> values(kPart);
  for (auto _ : state) {
    for (int64_t i = 0; i < kRows * kColumns; i += kPart) {
      random.FillNormal(static_cast<uint64_t>(i), std::span(values));
      benchmark::DoNotOptimize(values.data());
    }
  }
  Report(state, 1);
}

absl::StatusOr<std::unique_ptr<ShardedModel>> Make(
    collectives::Communicator& group, Parameter& parameter, int threads) {
  ParameterWindow window = {&parameter};
  const FirstWeights first({.seed = 1, .deviation = 0.02});
  return ShardedModel::Create(
      std::span(&window, 1), {.stage = 0, .fill_threads = threads},
      {.dense = {.shard = &group}},
      [&](const Parameter& drawn, int64_t begin, TensorView elements) {
        return first.Draw(drawn, begin, elements);
      });
}

absl::Status RunModel(benchmark::State& state, DType dtype, int threads) {
  tensor_parallel::CpuOps ops({.threads = 1});
  TESSERA_ASSIGN_OR_RETURN(auto engines,
                           collectives::CreateInProcessEngines(1));
  TESSERA_ASSIGN_OR_RETURN(const auto group, collectives::Communicator::Create(
                                                 std::move(engines[0])));
  TESSERA_ASSIGN_OR_RETURN(
      Parameter parameter,
      Parameter::Create(tensor_parallel::TensorGroup(ops).WithoutWeightMemory(),
                        {.name = "layers.0.mlp.down.weight",
                         .shape = {kRows, kColumns},
                         .rows = {{{0, kRows}}},
                         .columns = {0, kColumns},
                         .dtype = dtype}));
  for (auto _ : state) {
    TESSERA_ASSIGN_OR_RETURN(const auto model,
                             Make(*group, parameter, threads));
    benchmark::DoNotOptimize(model.get());
  }
  Report(state, threads);
  return absl::OkStatus();
}

void BM_Model(benchmark::State& state, DType dtype, int threads) {
  const absl::Status status = RunModel(state, dtype, threads);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

const bool kRegistered = [] {
  benchmark::RegisterBenchmark("formula", BM_Formula)->UseRealTime();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t threads : {int64_t{1}, AvailableProcessors()}) {
      const std::string name = "model_" + std::string(DTypeName(dtype)) +
                               "/threads:" + std::to_string(threads);
      benchmark::RegisterBenchmark(name.c_str(), BM_Model, dtype,
                                   static_cast<int>(threads))
          ->UseRealTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace tessera::train
