#include "tools/train/testing/run_job.h"

#include <memory>
#include <sstream>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/run_ranks.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/testing/small_text.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using Engines = std::vector<std::unique_ptr<collectives::Engine>>;

collectives::CommunicatorOptions WorldOptions(const Settings& settings) {
  collectives::CommunicatorOptions options;
  options.timeout = settings.parallel.timeout;
  options.reproducible = true;
  return options;
}

int64_t RanksOf(const Settings& settings) {
  return settings.parallel.mesh.world_size();
}

}  // namespace

Settings SmallSettings() {
  Settings settings;
  settings.length = 16;
  settings.batch = 8;
  settings.steps = 4;
  settings.parallel.mesh = {};
  settings.engine = "in_process";
  settings.zero = 0;
  settings.persistence_threshold = 0;  // Partitions all of SmallModel.
  settings.offload = "none";
  settings.learning_rate = 1e-2;
  settings.min_learning_rate = 1e-3;
  settings.warmup_steps = 0;
  return settings;
}

model_files::ModelConfig SmallModel() {
  model_files::ModelConfig model = {.vocabulary = 264,
                                    .hidden = 24,
                                    .intermediate = 40,
                                    .layers = 4,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_size = 6};
  model.initializer_range = 0.1;
  return model;
}

TrainingData SmallData(const Settings& settings) {
  TrainingData data;
  data.tokenizer = std::make_shared<text::ByteTokenizer>();
  data.samples = *text::Samples::Create(
      testing::SmallText(),
      {.sequence = settings.length,
       .validation_fraction = settings.validation_fraction,
       .test_fraction = settings.test_fraction,
       .seed = static_cast<uint64_t>(settings.seed)});
  return data;
}

std::vector<double> JobRun::losses() const {
  std::vector<double> losses;
  for (const StepMetrics& step : result.steps) {
    losses.push_back(step.record.loss);
  }
  return losses;
}

JobRun RunJob(
    const Settings& settings,
    const std::function<void(int64_t rank, WorkerSinks& sinks)>& change,
    const model_files::ModelConfig& model, const TrainingData* data) {
  const TrainingData small = SmallData(settings);
  if (data == nullptr) data = &small;
  absl::StatusOr<Engines> engines =
      collectives::CreateInProcessEngines(RanksOf(settings));
  std::vector<WorkerSinks> sinks;
  for (auto& engine : *engines) {
    WorkerSinks& own = sinks.emplace_back();
    own.collectives = std::make_shared<CollectiveLog>();
    engine = MeasureEngine(std::move(engine), own.collectives);
  }
  std::ostringstream table;
  std::vector<RunResult> results(sinks.size());
  JobRun run;
  const absl::Time begin = absl::Now();
  run.statuses = collectives::RunRanksOn(
      std::move(engines),
      [&](Communicator& world) -> absl::Status {
        const auto rank = static_cast<size_t>(world.rank().value());
        if (rank == 0) sinks[rank].table = &table;
        if (change) change(world.rank().value(), sinks[rank]);
        TESSERA_ASSIGN_OR_RETURN(
            results[rank],
            RunWorker(world, settings, model, *data, sinks[rank]));
        return absl::OkStatus();
      },
      WorldOptions(settings));
  run.took = absl::Now() - begin;
  run.result = results[0];
  run.table = table.str();
  return run;
}

std::vector<double> LossesOfTrainRank(const Settings& settings) {
  const TrainingData data = SmallData(settings);
  std::vector<double> losses;
  collectives::RunRanks(
      RanksOf(settings),
      [&](Communicator& world) -> absl::Status {
        tensor_parallel::CpuOps ops({.threads = 1});
        TESSERA_ASSIGN_OR_RETURN(const RunOptions options,
                                 RunOptionsFrom(settings, SmallModel()));
        TESSERA_ASSIGN_OR_RETURN(
            const auto rank,
            TrainRank::Create(world, options, *data.samples, ops));
        while (rank->steps() < settings.steps) {
          TESSERA_ASSIGN_OR_RETURN(const StepRecord record, rank->Step());
          if (world.rank().value() == 0) losses.push_back(record.loss);
        }
        return absl::OkStatus();
      },
      WorldOptions(settings));
  return losses;
}

}  // namespace tessera::train
