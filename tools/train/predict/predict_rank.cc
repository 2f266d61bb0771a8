#include "tools/train/predict/predict_rank.h"

#include <utility>

#include "base/status_macros.h"
#include "tools/train/predict/traffic/predict_traffic.h"

namespace tessera::train {

absl::StatusOr<RankPrediction> PredictRank(const RunPlan& plan,
                                           const RankPlace& place,
                                           const StateHomes& homes) {
  TESSERA_ASSIGN_OR_RETURN(const StatePlan state,
                           StatePlan::Create(plan, place, homes));
  RankPrediction rank(plan.options().mesh);
  rank.place = place;
  rank.parameters = state.model().elements();
  TESSERA_ASSIGN_OR_RETURN(rank.state, PredictState(state));
  TESSERA_ASSIGN_OR_RETURN(rank.activations, PredictActivations(plan, place));
  TESSERA_ASSIGN_OR_RETURN(rank.traffic, PredictTraffic(plan, place, state));
  return rank;
}

}  // namespace tessera::train
