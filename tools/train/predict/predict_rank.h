// PredictRank: the memory and traffic of one rank of a run, by running it:
// TrainRank takes a step on memory, messages and arithmetic that are only
// counted.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPlan plan, RunPlan::Create(options));
//   TESSERA_ASSIGN_OR_RETURN(
//       const RankPrediction rank,
//       PredictRank(plan, {.dp = 1}, {.optimizer = StateHome::kHost}));
//
// All steps of a run are alike, so one is enough. Nothing is allocated and no
// other rank is needed. Bytes throughout.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor/counting_memory.h"
#include "tools/train/predict/rank_place.h"
#include "tools/train/predict/rank_traffic.h"

namespace tessera::train {

enum class StateHome {
  kMemory,  // The rank's own.
  kHost,    // A tier in host memory, used in place where not compressed.
  kFiles,
};

struct StateHomes {
  StateHome parameters = StateHome::kMemory;  // Stage 3 only.
  StateHome gradients = StateHome::kMemory;   // Stages 2 and 3 only.
  StateHome optimizer = StateHome::kMemory;
  // Between a forward and its backward.
  StateHome activations = StateHome::kMemory;
  // What is in tiers is encoded: it is reached through buffers, and may take
  // less than is predicted.
  bool compressed = false;

  bool has(StateHome home) const {
    return parameters == home || gradients == home || optimizer == home ||
           activations == home;
  }
};

// The peak of each purpose; they need not be at the same time.
struct StateMemory {
  // In the rank's own memory, by what ShardedState::usage() calls them.
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t buffers = 0;
  // In tiers.
  int64_t host = 0;
  int64_t files = 0;
  // Aligned memory through which a file tier reads and writes.
  int64_t staging = 0;
  // What a checkpoint in the middle of a run copies, until it is written.
  int64_t snapshot = 0;
};

struct ActivationMemory {
  // Blocks that the pools of the rank's stages make and keep.
  int64_t pools = 0;
  // RankTimeline::peak_bytes of the executor. A started send is taken to be
  // under way as long as it may be.
  int64_t boundaries = 0;
  // What layers keep for themselves: gathered tokens and partial sums under
  // sequence parallelism, what goes round in ring attention.
  int64_t layers = 0;
  int64_t micro_batches = 0;  // In flight at a time, by stage, at most.
};

struct RankPrediction {
  explicit RankPrediction(const MeshSizes& mesh) : traffic(mesh) {}

  RankPlace place;
  // When it gathers weights and reduces gradients: RunSchedule::Describe.
  std::string placement;
  int64_t parameters = 0;  // Elements of the weights that its stages compute
                           // with, before they are shared out by ZeRO.
  StateMemory state;
  ActivationMemory activations;
  // Of all of these in memory together: the most that is held at a time.
  int64_t held = 0;
  RankTraffic traffic;
  int64_t windows = 0;  // Of shared memory; RunPrediction knows the engine.

  // Of a step at its peak, without what a process has anyway.
  int64_t peak_bytes() const { return held + state.staging + windows; }
};

using MemoryAccess = CountingMemory::Access;

// Errors are TrainRank's. With MemoryAccess::kTrapped a dry run that touches
// its memory ends the process.
absl::StatusOr<RankPrediction> PredictRank(
    const RunPlan& plan, const RankPlace& place, const StateHomes& homes,
    MemoryAccess access = MemoryAccess::kZeros);

// Of each of `places`, in their order. Ranks whose stages have the same sizes
// are run once.
absl::StatusOr<std::vector<RankPrediction>> PredictRanks(
    const RunPlan& plan, std::span<const RankPlace> places,
    const StateHomes& homes);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
