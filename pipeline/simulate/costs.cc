#include "pipeline/simulate/costs.h"

#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {

namespace {

absl::Status CheckLink(const Link& link, const std::string& name) {
  if (!std::isfinite(link.latency) || link.latency < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has a latency of ", link.latency,
                     "; latencies are finite and not negative"));
  }
  if (!(link.bandwidth > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has a bandwidth of ", link.bandwidth,
                     "; bandwidths are more than 0, or infinite"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLinks(const Links& links, int64_t ranks) {
  TESSERA_RETURN_IF_ERROR(CheckLink(links.everywhere, "the link everywhere"));
  for (const auto& [ends, link] : links.exceptions) {
    const auto [sender, receiver] = ends;
    const std::string name =
        absl::StrCat("the link from rank ", sender, " to ", receiver);
    TESSERA_RETURN_IF_ERROR(CheckLink(link, name));
    const auto is_rank = [&](int32_t r) { return r >= 0 && r < ranks; };
    if (is_rank(sender) && is_rank(receiver) && sender != receiver) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " connects no two of ", ranks,
                     " ranks; both are from 0 to ", ranks - 1, " and differ"));
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckTime(double time, size_t stage) {
  if (std::isfinite(time) && time >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a time of ", time, " in stage ", stage,
                   "; times are finite and not negative"));
}

absl::Status CheckSize(int64_t bytes, size_t stage, std::string_view what) {
  if (bytes >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      bytes, " bytes of ", what, " in stage ", stage, "; 0 or more"));
}

absl::Status CheckStage(const StageCosts& cost, size_t stage) {
  for (const double time :
       {cost.forward, cost.backward_input, cost.backward_weight,
        cost.communication, cost.unshard, cost.reduce_gradient,
        cost.optimizer}) {
    TESSERA_RETURN_IF_ERROR(CheckTime(time, stage));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckSize(cost.activation_bytes, stage, "activations sent"));
  TESSERA_RETURN_IF_ERROR(
      CheckSize(cost.gradient_bytes, stage, "gradients sent"));
  TESSERA_RETURN_IF_ERROR(CheckSize(cost.unreduced_bytes, stage, "gradients"));
  return CheckSize(cost.unsharded_bytes, stage, "parameters");
}

}  // namespace

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
    case ActionKind::kUnshard:
      return unshard;
    case ActionKind::kReduceGradient:
      return reduce_gradient;
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
  Costs all;
  all.stages.assign(static_cast<size_t>(stages), costs);
  return all;
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
    TESSERA_RETURN_IF_ERROR(CheckStage(costs.stages[stage], stage));
  }
  if (!std::isfinite(costs.synchronisation) || costs.synchronisation < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a synchronisation of ", costs.synchronisation,
                     " before the optimizer's step; times are finite and not "
                     "negative"));
  }
  return CheckLinks(costs.links, stages);
}

}  // namespace tessera::pipeline
