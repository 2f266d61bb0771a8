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

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/model_files/model_config.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/report/run_result.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// A rank's place on its machine, its outputs and its callbacks. Not owned.
struct WorkerSinks {
  // The rank's number on its machine, which selects its GPU. If unset, its rank
  // in the world.
  std::optional<int64_t> local_rank = std::nullopt;
  // The number of ranks on its machine, which share its processors. If unset,
  // all ranks.
  std::optional<int64_t> local_ranks = std::nullopt;
  // Rank 0 writes the live table here; null: no table. On a terminal it updates
  // one line at every step.
  std::ostream* table = nullptr;
  bool is_terminal = false;
  // The log of the rank's engine (MeasureEngine). Null: time in collectives
  // counts as computation.
  std::shared_ptr<CollectiveLog> collectives = nullptr;
  // Called before each step; an error ends the run. For supervisors and tests.
  std::function<absl::Status(int64_t step)> before_step = nullptr;
  // Called after each step.
  std::function<void()> on_step = nullptr;
  // Replaces the process's memory readings for --memory_limit in tests.
  std::optional<MemoryWatch::System> memory = std::nullopt;
};

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
