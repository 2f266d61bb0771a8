#include "pipeline/simulate/costs.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera::pipeline {

double StageCosts::TimeOf(ActionKind kind) const {
  switch (kind) {
    case ActionKind::kForward:
      return forward;
    case ActionKind::kBackward:
      return backward_input + backward_weight;
    case ActionKind::kBackwardInput:
      return backward_input;
    case ActionKind::kBackwardWeight:
      return backward_weight;
    default:
      return 0;
  }
}

int64_t StageCosts::BytesOf(ActionKind kind) const {
  switch (kind) {
    case ActionKind::kForward:
      return forward_bytes;
    case ActionKind::kBackward:
      return backward_input_bytes + backward_weight_bytes;
    case ActionKind::kBackwardInput:
      return backward_input_bytes;
    case ActionKind::kBackwardWeight:
      return backward_weight_bytes;
    default:
      return 0;
  }
}

Costs Costs::Uniform(int64_t stages, const StageCosts& costs) {
  return {std::vector<StageCosts>(static_cast<size_t>(stages), costs)};
}

absl::Status CheckCosts(const Costs& costs, int64_t stages) {
  if (static_cast<int64_t>(costs.stages.size()) != stages) {
    return absl::InvalidArgumentError(absl::StrCat("costs of ",
                                                   costs.stages.size(),
                                                   " stages for a schedule "
                                                   "of ",
                                                   stages));
  }
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCosts& cost = costs.stages[stage];
    for (const double time : {cost.forward, cost.backward_input,
                              cost.backward_weight, cost.communication}) {
      if (std::isfinite(time) && time >= 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a time of ", time, " in stage ", stage,
                       "; times are finite and not negative"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::pipeline
