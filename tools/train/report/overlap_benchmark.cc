// Measures how much of the traffic of model state overlaps computation, with
// data-parallel ranks as threads, over links of a given bandwidth that need no
// processor.
//
//   bazel run -c opt //tools/train/report:overlap_benchmark
//
// Counters, the means over ranks and steps: `traffic`, the share of a step in
// which weights are gathered or gradients reduced; `hidden`, the share of that
// which overlaps computation; `ratio`, computation over traffic. The limit of
// `hidden` at a ratio of 1 or more is 1, less the first gather and the last
// reduction of a step.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "benchmark/benchmark.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/wire_engine.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/text/corpus.h"
#include "tools/text/tokenizer.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/step_meter.h"
#include "tools/train/step/train_rank.h"

namespace tessera::train {
namespace {

constexpr int kSteps = 3;

struct Measured {
  absl::Status status;
  double traffic = 0, hidden = 0, compute = 0, seconds = 0;
};

absl::Status RunRank(std::unique_ptr<collectives::Engine> engine,
                     const RunOptions& options, Measured& measured) {
  const std::string texts[] = {std::string(1 << 16, 'x')};
  TESSERA_ASSIGN_OR_RETURN(
      const auto corpus, text::Corpus::FromTexts(texts, text::ByteTokenizer()));
  TESSERA_ASSIGN_OR_RETURN(
      const auto samples,
      text::Samples::Create(corpus, {.sequence = options.length}));
  auto log = std::make_shared<CollectiveLog>();
  collectives::CommunicatorOptions reproducible;
  reproducible.reproducible = true;
  TESSERA_ASSIGN_OR_RETURN(
      auto world, collectives::Communicator::Create(
                      MeasureEngine(std::move(engine), log), reproducible));
  tensor_parallel::CpuOps ops({.threads = 1});
  StepMeter meter(ops, log, 0);
  TESSERA_ASSIGN_OR_RETURN(
      const auto rank,
      TrainRank::Create(*world, options, samples, meter.ops()));
  for (int step = 0; step <= kSteps; ++step) {
    TESSERA_RETURN_IF_ERROR(meter.Begin(*rank));
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
    TESSERA_ASSIGN_OR_RETURN(const StepActivity activity, meter.End(*rank));
    if (step == 0) continue;
    const TimeShares shares = AccountOf(activity).shares();
    measured.traffic += shares.state_traffic / kSteps;
    measured.hidden += shares.state_hidden / kSteps;
    measured.compute += shares.compute / kSteps;
    measured.seconds +=
        static_cast<double>(activity.whole.size()) * 1e-9 / kSteps;
  }
  return absl::OkStatus();
}

// Arguments: ZeRO stage, pipeline ranks, MB/s of a link.
void BM_Overlap(benchmark::State& state) {
  RunOptions options;
  options.mesh = {.dp = 2, .pp = state.range(1)};
  const auto model = model_files::PresetConfig("llama-10m");
  if (!model.ok()) return state.SkipWithError("no such model");
  options.model = *model;
  options.micro_batch = 4;
  options.batch = 2 * 4 * state.range(1);
  options.length = 256;
  options.state.stage = static_cast<int>(state.range(0));
  const int64_t ranks = options.mesh.world_size();
  for ([[maybe_unused]] auto _ : state) {
    auto engines = collectives::CreateInProcessEngines(ranks);
    if (!engines.ok()) return state.SkipWithError("no engines");
    std::vector<Measured> all(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (size_t r = 0; r < all.size(); ++r) {
      threads.emplace_back([&, r] {
        all[r].status = RunRank(collectives::WireEngine::Wrap(
                                    std::move((*engines)[r]),
                                    static_cast<double>(state.range(2)) * 1e6),
                                options, all[r]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    Measured mean;
    for (const Measured& one : all) {
      if (!one.status.ok()) {
        return state.SkipWithError(one.status.ToString().c_str());
      }
      mean.traffic += one.traffic / static_cast<double>(ranks);
      mean.hidden += one.hidden / static_cast<double>(ranks);
      mean.compute += one.compute / static_cast<double>(ranks);
      mean.seconds += one.seconds / static_cast<double>(ranks);
    }
    state.counters["traffic"] = mean.traffic;
    state.counters["hidden"] = mean.hidden / mean.traffic;
    state.counters["ratio"] = mean.compute / mean.traffic;
    state.counters["step_s"] = mean.seconds;
  }
}
BENCHMARK(BM_Overlap)
    ->ArgNames({"zero", "pp", "MBps"})
    ->ArgsProduct({{1, 2, 3}, {1}, {100, 200, 400}})
    ->ArgsProduct({{2, 3}, {2}, {100, 200, 400}})
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace tessera::train
