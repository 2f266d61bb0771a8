#include "tools/train/launch/trainer.h"

#include <memory>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "tools/train/launch/run_result_json.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/loop/worker.h"
#include "tools/train/settings/model_of.h"

namespace tessera::train {
namespace {

// What the ranks of a process share.
struct Task {
  Settings settings;
  TrainingData data;
  model_files::ModelConfig model;
};

WorkerSinks SinksOf(const RankContext& rank, const Settings& settings) {
  WorkerSinks sinks;
  if (!settings.quiet) sinks.table = rank.progress;
  sinks.is_terminal = rank.is_terminal;
  sinks.collectives = rank.collectives;
  sinks.on_step = rank.on_step;
  return sinks;
}

absl::StatusOr<std::string> Train(const Task& task, const RankContext& rank) {
  TESSERA_ASSIGN_OR_RETURN(const RunResult result,
                           RunWorker(rank.world, task.settings, task.model,
                                     task.data, SinksOf(rank, task.settings)));
  return FormatRunResult(result);
}

}  // namespace

absl::StatusOr<RankProgram> MakeTrainer(const Settings& settings) {
  auto task = std::make_shared<Task>();
  task->settings = settings;
  TESSERA_ASSIGN_OR_RETURN(task->data, OpenTrainingData(settings));
  TESSERA_ASSIGN_OR_RETURN(
      task->model, ModelOf(settings, task->data.tokenizer->vocabulary_size()));
  return [task = std::shared_ptr<const Task>(std::move(task))](
             const RankContext& rank) { return Train(*task, rank); };
}

}  // namespace tessera::train
