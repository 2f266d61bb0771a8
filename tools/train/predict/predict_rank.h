// PredictRank: what one rank of a run holds and sends, by the rules that the
// runtime follows.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPlan plan, RunPlan::Create(options));
//   TESSERA_ASSIGN_OR_RETURN(
//       const RankPrediction rank,
//       PredictRank(plan, {.dp = 1}, {.optimizer = StateHome::kHost}));
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/train/predict/activations/activation_memory.h"
#include "tools/train/predict/rank_place.h"
#include "tools/train/predict/state/state_memory.h"
#include "tools/train/predict/traffic/rank_traffic.h"

namespace tessera::train {

struct RankPrediction {
  explicit RankPrediction(const MeshSizes& mesh) : traffic(mesh) {}

  RankPlace place;
  int64_t parameters = 0;  // Elements of the weights that its stages compute
                           // with, before they are shared out by ZeRO.
  StateMemory state;
  ActivationMemory activations;
  RankTraffic traffic;
  int64_t windows = 0;  // Of shared memory; RunPrediction knows the engine.

  // Of a step at its peak, without what a process has anyway.
  int64_t peak_bytes() const {
    return state.in_memory() + activations.pools + activations.boundaries +
           activations.layers + windows;
  }
  // Between steps nothing is on its way to or from other ranks and tiers.
  int64_t bytes_between_steps() const { return peak_bytes() - state.buffers; }
};

absl::StatusOr<RankPrediction> PredictRank(const RunPlan& plan,
                                           const RankPlace& place,
                                           const StateHomes& homes);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
