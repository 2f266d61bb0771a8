// PredictTraffic: what a rank sends in a step, without running it.
//
//   TESSERA_ASSIGN_OR_RETURN(const RankTraffic traffic,
//                            PredictTraffic(plan, place, state));
//   traffic.BytesOf(TrafficAxis::kTp);
//
// Of a step from the second one on: in the first, ranks agree on shapes and on
// the order of weights, and stage 3 gathers these for each use.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_TRAFFIC_PREDICT_TRAFFIC_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_TRAFFIC_PREDICT_TRAFFIC_H_

#include "absl/status/statusor.h"
#include "tools/train/predict/rank_place.h"
#include "tools/train/predict/state/state_plan.h"
#include "tools/train/predict/traffic/rank_traffic.h"

namespace tessera::train {

// `state` is of the same plan and place.
absl::StatusOr<RankTraffic> PredictTraffic(const RunPlan& plan,
                                           const RankPlace& place,
                                           const StatePlan& state);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_TRAFFIC_PREDICT_TRAFFIC_H_
