// RunContext: the world, settings, data and outputs that the parts of a worker
// share, and the collectives by which its ranks agree.
//
//   TESSERA_RETURN_IF_ERROR(run.Agree(status));  // all ranks fail, or none
//   TESSERA_ASSIGN_OR_RETURN(const std::string path, run.FromFirst(own_path));
//   run.Say("step 7 is skipped");                // once, by rank 0
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RUN_CONTEXT_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RUN_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/groups/host_hierarchy.h"
#include "tools/model_files/model_config.h"
#include "tools/train/checkpoint/imported_weights.h"
#include "tools/train/checkpoint/memory_copies.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/loop/preemption.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/report/run_trace.h"
#include "tools/train/report/step_outputs.h"
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
  // Ends the run after a step. Shared by the ranks of a process; null: never.
  Preemption* preemption = nullptr;
  // With --snapshot_every: copies of the state, which outlive the worker. Null:
  // none.
  MemoryCopies* copies = nullptr;
  // The locations of the ranks, if they are known.
  std::span<const collectives::RankLocation> locations = {};
  // Replaces the process's memory readings for --memory_limit in tests.
  std::optional<MemoryWatch::System> memory = std::nullopt;
};

struct RunContext {
  // The timeout of agreements: the slowest rank may be writing a checkpoint.
  static constexpr absl::Duration kAgreementTimeout = absl::Minutes(30);

  collectives::Communicator& world;
  Settings settings;  // Changes with the memory strategy.
  const model_files::ModelConfig& model;
  const TrainingData& data;
  const WorkerSinks& sinks;
  // The files of the model in the checkpoint that --resume selects.
  std::optional<model_files::ModelSource> source = std::nullopt;
  // The weights of --init_from, while the first rank is made. Null: random
  // weights, which a checkpoint may replace.
  std::shared_ptr<const ImportedWeights> first_weights = nullptr;
  std::unique_ptr<RunTrace> trace = nullptr;       // With --trace.
  std::unique_ptr<StepOutputs> outputs = nullptr;  // On rank 0.

  bool is_first() const { return world.rank() == collectives::Rank(0); }
  // Ranks are threads and share one process's memory.
  bool shares_process() const { return world.engine_name() == "in_process"; }
  RunIdentity identity() const {
    RunIdentity identity = IdentityOf(settings, model, data);
    if (source.has_value()) identity.source = *source;
    return identity;
  }

  // Collectives of the world. Agree returns the error of the first rank that
  // has one, FromFirst rank 0's text.
  absl::Status Agree(const absl::Status& mine) const;
  absl::StatusOr<std::string> FromFirst(std::string_view mine) const;

  // Prints `line` on rank 0.
  void Say(std::string_view line) const;
  // Adds an event between steps, from `begin` until now, to the trace.
  void Trace(std::string_view name, int64_t begin) const;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RUN_CONTEXT_H_
