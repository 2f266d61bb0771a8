// A model of 50 million parameters on one rank and one thread: the share of
// matrix products and attention in a step, and in the processor's peak.
//
//   bazel run -c opt //tools/train/report:step_meter_benchmark
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/tensor/tensor.h"
#include "benchmark/benchmark.h"
#include "collectives/engine/operation_context.h"
#include "collectives/in_process/in_process.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/model_files/model_config.h"
#include "tools/text/corpus.h"
#include "tools/text/tokenizer.h"
#include "tools/train/loop/train_rank.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/step_meter.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;

// FLOP/s of one large product, the best of several runs.
absl::StatusOr<double> ProductRate(tensor_parallel::Ops& ops) {
  constexpr int64_t kSize = 1024;
  std::vector<Tensor> tensors;
  for (int i = 0; i < 3; ++i) {
    TESSERA_ASSIGN_OR_RETURN(Tensor tensor,
                             Tensor::Create(DType::kF32, {{kSize, kSize}}));
    TESSERA_RETURN_IF_ERROR(ops.Fill(1.0 / kSize, tensor.view()));
    tensors.push_back(std::move(tensor));
  }
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const int64_t begin = MonotonicNanos();
    TESSERA_RETURN_IF_ERROR(ops.Gemm({.transpose_b = true}, tensors[0].view(),
                                     tensors[1].view(), tensors[2].view()));
    best =
        std::max(best, 2.0 * kSize * kSize * kSize /
                           static_cast<double>(MonotonicNanos() - begin) * 1e9);
  }
  return best;
}

absl::StatusOr<RunOptions> Options(int64_t length) {
  RunOptions options;
  TESSERA_ASSIGN_OR_RETURN(options.model,
                           model_files::PresetConfig("llama-50m"));
  options.batch = 2048 / length;
  options.length = length;
  options.state.stage = 0;
  options.state.clip_norm = 1;
  return options;
}

absl::Status Measure(benchmark::State& state) {
  TESSERA_ASSIGN_OR_RETURN(const RunOptions options, Options(state.range(0)));
  const std::string texts[] = {std::string(1 << 16, 'x')};
  TESSERA_ASSIGN_OR_RETURN(
      const auto corpus, text::Corpus::FromTexts(texts, text::ByteTokenizer()));
  TESSERA_ASSIGN_OR_RETURN(
      const auto samples,
      text::Samples::Create(corpus, {.sequence = options.length}));
  TESSERA_ASSIGN_OR_RETURN(auto engines,
                           collectives::CreateInProcessEngines(1));
  TESSERA_ASSIGN_OR_RETURN(
      auto world, collectives::Communicator::Create(std::move(engines[0])));
  tensor_parallel::CpuOps ops({.threads = 1});
  StepMeter meter(ops, nullptr, 0);
  TESSERA_ASSIGN_OR_RETURN(
      const auto rank,
      TrainRank::Create(*world, options, samples, meter.ops()));
  TESSERA_RETURN_IF_ERROR(rank->Step().status());
  TimeShares sum;
  double seconds = 0;
  double steps = 0;
  for ([[maybe_unused]] auto _ : state) {
    meter.Begin();
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
    TESSERA_ASSIGN_OR_RETURN(const StepActivity activity, meter.End(*rank));
    const TimeShares shares = AccountOf(activity).shares();
    seconds += static_cast<double>(activity.whole.size()) * 1e-9;
    sum.products += shares.products;
    sum.optimizer += shares.optimizer;
    ++steps;
  }
  TESSERA_ASSIGN_OR_RETURN(const double rate, ProductRate(ops));
  const double tokens = static_cast<double>(options.batch * options.length);
  const double flops =
      options.model.TrainingFlopsPerToken(options.length) * tokens * steps;
  state.counters["products"] = sum.products / steps;
  state.counters["optimizer"] = sum.optimizer / steps;
  state.counters["tokens_per_second"] = tokens * steps / seconds;
  state.counters["share_of_product_rate"] = flops / seconds / rate;
  return absl::OkStatus();
}

void BM_OneRankOneThread(benchmark::State& state) {
  const absl::Status status = Measure(state);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(BM_OneRankOneThread)
    ->ArgName("length")
    ->Arg(128)
    ->Arg(512)
    ->Iterations(2)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera::train
