// Runs one rank of a training run, from the joined world to the last step and
// its checkpoint.
//
//   auto log = std::make_shared<CollectiveLog>();
//   TESSERA_ASSIGN_OR_RETURN(
//       auto world, Communicator::Create(
//                       MeasureEngine(std::move(engine), log), options));
//   TESSERA_ASSIGN_OR_RETURN(
//       const RunResult result,
//       RunWorker(*world, settings, model, data,
//                 {.table = &std::cerr, .collectives = log}));
//
// With --memory_limit the ranks sum up their memory after each step. If the sum
// is near or above the limit, and returning freed memory does not help, they
// climb the memory ladder (settings/memory_ladder.h) together: they write a
// checkpoint, release their state, and restore the checkpoint with the settings
// of the next rung. Rank 0 prints one line. If no rung is left, or the
// checkpoint cannot be written, rank 0 prints that and the run continues
// unchanged.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_WORKER_H_
#define TESSERA_TOOLS_TRAIN_LOOP_WORKER_H_

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/model_files/model_config.h"
#include "tools/train/loop/run_context.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// A collective of the world, with the same settings on every rank. `settings`
// must have passed CheckSettings. Its run_dir, which holds the checkpoints,
// must exist; if it is empty, no checkpoints are written. `data` has samples of
// settings.length. An error of one rank aborts the world, and every rank
// returns an error that names the root cause as far as the engine knows it.
// Deletes files and blocks of offload tiers; checkpoints and metrics remain.
absl::StatusOr<RunResult> RunWorker(collectives::Communicator& world,
                                    const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const TrainingData& data,
                                    const WorkerSinks& sinks = {});

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_WORKER_H_
