// For tests: trains a small model with RunWorker, with threads as ranks.
//
//   const JobRun run = RunJob(SmallSettings());
//   run.result.steps.back().record.loss;
#ifndef TESSERA_TOOLS_TRAIN_TESTING_RUN_JOB_H_
#define TESSERA_TOOLS_TRAIN_TESTING_RUN_JOB_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/model_files/model_config.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/loop/worker.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Four layers, four steps, one rank, no offloading.
Settings SmallSettings();
model_files::ModelConfig SmallModel();
TrainingData SmallData(const Settings& settings);

struct JobRun {
  std::vector<absl::Status> statuses;  // By rank.
  RunResult result;                    // From rank 0, if all statuses are OK.
  std::string table;                   // The output of rank 0.
  absl::Duration took;

  std::vector<double> losses() const;
};

// `change` may change a rank's sinks. Trains on `data`, or SmallData.
JobRun RunJob(const Settings& settings,
              const std::function<void(int64_t rank, WorkerSinks& sinks)>&
                  change = nullptr,
              const model_files::ModelConfig& model = SmallModel(),
              const TrainingData* data = nullptr);

// The losses of TrainRank without RunWorker, with the same settings.
std::vector<double> LossesOfTrainRank(const Settings& settings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_TESTING_RUN_JOB_H_
