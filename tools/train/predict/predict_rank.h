// PredictRank: what one rank of a run holds and sends, by the rules that the
// runtime follows.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPlan plan, RunPlan::Create(options));
//   TESSERA_ASSIGN_OR_RETURN(
//       const RankPrediction rank,
//       PredictRank(plan, {.dp = 1}, {.optimizer = StateHome::kHost}));
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_

#include <algorithm>
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

  // Of a step at its peak, and before the first one; without what a process
  // has anyway.
  int64_t step_bytes() const {
    return state.in_memory() + activations.pools + activations.boundaries +
           activations.layers;
  }
  int64_t peak_bytes() const { return std::max(step_bytes(), state.start); }
  // The same where a checkpoint is on its way while the next step runs, or
  // behind the last one, when nothing has been given back.
  int64_t peak_with_checkpoint() const {
    return std::max(step_bytes() + state.snapshot, state.start);
  }
};

absl::StatusOr<RankPrediction> PredictRank(const RunPlan& plan,
                                           const RankPlace& place,
                                           const StateHomes& homes);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RANK_H_
