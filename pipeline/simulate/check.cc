#include "pipeline/simulate/check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/place.h"

namespace tessera::pipeline {
namespace {

bool IsThere(const Schedule& schedule, const Action& action) {
  return action.stage >= 0 && action.stage < schedule.map.stages() &&
         (!HasMicroBatch(action.kind) ||
          (action.microbatch >= 0 &&
           action.microbatch < schedule.microbatches));
}

absl::Status NotThere(const Schedule& schedule, Place place) {
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(schedule, place), ": there are ", schedule.map.stages(),
      " stages and ", schedule.microbatches, " micro-batches"));
}

absl::Status OfOtherRank(const Schedule& schedule, Place place) {
  const Action& action = ActionAt(schedule, place);
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(schedule, place), " is to be done by rank ",
                   schedule.RankOf(action.stage, action.microbatch)));
}

absl::Status CheckMessage(const Schedule& schedule, Place place) {
  const Action& action = ActionAt(schedule, place);
  const Direction direction = DirectionOf(action.kind);
  const int32_t other = Sends(action.kind)
                            ? TargetOf(schedule, direction, action.stage)
                            : SourceOf(schedule, direction, action.stage);
  if (other != kNoStage &&
      schedule.RankOf(other, action.microbatch) != place.rank) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(schedule, place),
                   " joins no two ranks: it is to be left out; Validate tells "
                   "what else is wrong with the schedule"));
}

absl::Status CheckSize(const Schedule& schedule) {
  // As many as the generators' and the readers' limits allow, and more.
  constexpr int64_t kMost = int64_t{1} << 24;
  const int64_t microbatches = schedule.microbatches;
  if (microbatches < 0 || microbatches > kMost / schedule.map.stages()) {
    return absl::InvalidArgumentError(absl::StrCat(
        microbatches, " micro-batches in ", schedule.map.stages(),
        " stages; from 0 to ", kMost, " of both multiplied are simulated"));
  }
  if (static_cast<int64_t>(schedule.ranks.size()) == schedule.map.ranks()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("lists of ", schedule.ranks.size(), " ranks for a map of ",
                   schedule.map.ranks()));
}

absl::Status CheckBytes(const Schedule& schedule, const Costs& costs) {
  constexpr int64_t kMost = int64_t{1} << 62;
  size_t longest = 1;
  for (const auto& actions : schedule.ranks) {
    longest = std::max(longest, actions.size());
  }
  const int64_t most = kMost / static_cast<int64_t>(longest) / 2;
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCosts& cost = costs.stages[stage];
    for (const int64_t bytes : {cost.forward_bytes, cost.backward_input_bytes,
                                cost.backward_weight_bytes,
                                cost.unsharded_bytes, cost.unreduced_bytes}) {
      if (bytes >= -most && bytes <= most) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          bytes, " bytes in stage ", stage, " for a rank of ", longest,
          " actions; ", most, " at most can be added up"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Contents> CheckInputs(const Schedule& schedule,
                                     const Costs& costs) {
  TESSERA_RETURN_IF_ERROR(CheckLinks(costs.links, schedule.map.ranks()));
  TESSERA_RETURN_IF_ERROR(CheckCosts(costs, schedule.map.stages()));
  TESSERA_RETURN_IF_ERROR(CheckSize(schedule));
  TESSERA_RETURN_IF_ERROR(CheckBytes(schedule, costs));
  Contents contents;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (size_t at = 0; at < actions.size(); ++at) {
      const Place place{static_cast<int32_t>(rank), static_cast<int32_t>(at)};
      const Action& action = actions[at];
      if (!IsThere(schedule, action)) return NotThere(schedule, place);
      if (!HasMicroBatch(action.kind)) {
        contents.parameters = true;
        continue;
      }
      if (schedule.RankOf(action.stage, action.microbatch) != place.rank) {
        return OfOtherRank(schedule, place);
      }
      if (Computes(action.kind)) continue;
      contents.messages = true;
      TESSERA_RETURN_IF_ERROR(CheckMessage(schedule, place));
    }
  }
  return contents;
}

}  // namespace tessera::pipeline
