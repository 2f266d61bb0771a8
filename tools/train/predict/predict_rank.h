// Predicts the memory and traffic of one rank of a run by a dry run: TrainRank
// executes a step with memory, messages and arithmetic that are only counted.
//
//   TESSERA_ASSIGN_OR_RETURN(const PipelinePlan plan,
//                            PipelinePlan::Create(options));
//   TESSERA_ASSIGN_OR_RETURN(
//       const RankPrediction rank,
//       PredictRank(plan, {.dp = 1}, {.optimizer = StateHome::kHost}));
//
// All steps of a run are alike, so one step is enough. Nothing is allocated and
// no other rank is needed. All sizes are in bytes.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor/counting_memory.h"
#include "offload/tier/accounting.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/rank_traffic.h"
#include "zero3/parameters/statistics.h"

namespace tessera::train {

enum class StateHome {
  kMemory,  // The rank's own memory.
  kHost,    // A tier in host memory, used in place unless compressed.
  kFiles,   // A tier in files.
};

struct StateHomes {
  StateHome parameters = StateHome::kMemory;  // Stage 3 only.
  StateHome gradients = StateHome::kMemory;   // Stages 2 and 3 only.
  StateHome optimizer = StateHome::kMemory;
  // For saved activations, between a forward and its backward.
  StateHome activations = StateHome::kMemory;
  // Blocks in tiers are encoded. They are accessed through buffers, and may be
  // smaller than predicted.
  bool compressed = false;
  // The budget of kHost, and whether more goes to files (offload::SpillTier).
  // With compression, blocks count with their size before it.
  int64_t host_budget = offload::kUnlimited;
  bool spills = false;
  bool pinned = false;  // The whole host budget is in use.
  // The rank's own memory is device memory, which requires copies and host
  // memory for them.
  bool on_device = false;

  bool has(StateHome home) const {
    return parameters == home || gradients == home || optimizer == home ||
           activations == home;
  }
};

// The peak bytes of each purpose. The peaks may occur at different times.
struct StateMemory {
  // In the rank's own memory, as ShardedState::usage() counts it.
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t buffers = 0;
  // In tiers.
  int64_t host = 0;
  int64_t files = 0;
  // The file tier's aligned buffers.
  int64_t staging = 0;
  // The copy of the state from which a checkpoint is written during the run.
  int64_t snapshot = 0;
  // One copy of the state for --snapshot_every.
  int64_t copy = 0;
};

struct ActivationMemory {
  // Blocks in the activation pools of the rank's stages.
  int64_t pools = 0;
  // RankTimeline::peak_bytes of the executor, assuming that each send ends as
  // late as possible.
  int64_t boundaries = 0;
  // The layers' working memory: gathered tokens and partial sums under sequence
  // parallelism, keys and values of ring attention.
  int64_t layers = 0;
  int64_t micro_batches = 0;  // The maximum in flight in any stage.
};

struct RankPrediction {
  explicit RankPrediction(const MeshSizes& mesh) : traffic(mesh) {}

  RankPlace place;
  // RunSchedule::Describe: when weights are gathered and gradients are reduced.
  std::string placement;
  int64_t parameters = 0;  // Elements of its stages' weights, unsharded.
  zero3::ParameterStatistics weights;  // The same weights, one by one.
  StateMemory state;
  ActivationMemory activations;
  // The peak of the sum of all these purposes, except files.
  int64_t held = 0;
  // `device`: the peak of the memory of the device that computes, with all
  // purposes except tiers and host memory for copies. `host`: the peak of
  // these.
  int64_t device = 0;
  int64_t host = 0;
  RankTraffic traffic;
  // Set by RunPrediction: the shared memory, and the memory of a GPU that
  // libraries use.
  int64_t windows = 0;
  int64_t workspaces = 0;

  // The peak of a step if all memory is the host's, without the memory of an
  // idle process.
  int64_t peak_bytes() const { return held + state.staging + windows; }
};

using MemoryAccess = CountingMemory::Access;

// Returns TrainRank's errors. With MemoryAccess::kTrapped, a dry run that
// accesses its memory crashes.
absl::StatusOr<RankPrediction> PredictRank(
    const PipelinePlan& plan, const RankPlace& place, const StateHomes& homes,
    MemoryAccess access = MemoryAccess::kZeros);

// Returns the predictions of `places`, in their order. Runs only one of the
// ranks whose stages have equal sizes.
absl::StatusOr<std::vector<RankPrediction>> PredictRanks(
    const PipelinePlan& plan, std::span<const RankPlace> places,
    const StateHomes& homes);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
