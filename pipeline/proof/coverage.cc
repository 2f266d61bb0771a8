#include "pipeline/proof/coverage.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/place.h"

namespace tessera::pipeline {
namespace {

// Whether there are lists for all ranks, and computations enough for a table of
// all stages and micro-batches to be worth its memory.
absl::Status CheckSizes(const Schedule& schedule) {
  const auto lists = static_cast<int64_t>(schedule.ranks.size());
  if (lists != schedule.map.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the schedule has ", lists, " lists of actions; its map ",
                     "has ", schedule.map.ranks(), " ranks"));
  }
  if (schedule.microbatches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", schedule.microbatches,
                     " micro-batches; at least 1 is allowed"));
  }
  int64_t computations = 0;
  for (const auto& actions : schedule.ranks) {
    if (actions.size() > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a list of ", actions.size(), " actions; at most 2^31 - 1"));
    }
    for (const Action& action : actions) {
      if (Computes(action.kind)) ++computations;
    }
  }
  const int64_t passes = schedule.map.stages() * schedule.microbatches;
  if (computations >= passes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the schedule has ", computations, " computations; ",
      schedule.microbatches, " micro-batches pass ", schedule.map.stages(),
      " stages with at least ", 2 * passes));
}

absl::Status CheckPlacement(const Schedule& schedule, Place place) {
  const Action& action = ActionAt(schedule, place);
  if (action.stage < 0 || action.stage >= schedule.map.stages()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule, place), ": the schedule has stages 0 ",
                     "to ", schedule.map.stages() - 1));
  }
  if (!HasMicroBatch(action.kind)) {
    if (action.microbatch != kNoMicroBatch) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(schedule, place),
                       " is of no micro-batch, but names ", action.microbatch));
    }
    const int32_t owner = schedule.map.RankOf(action.stage);
    if (place.rank == owner ||
        place.rank == schedule.map.RankFromBack(action.stage)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(schedule, place), ": the stage is rank ", owner, "'s"));
  }
  if (action.microbatch < 0 || action.microbatch >= schedule.microbatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(schedule, place), ": the schedule has micro-batches 0 to ",
        schedule.microbatches - 1));
  }
  const int32_t owner = schedule.RankOf(action.stage, action.microbatch);
  if (place.rank == owner) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(schedule, place), ": the action is rank ", owner, "'s"));
}

// The kinds that together with `kind` would do a backward twice.
std::array<ActionKind, 3> Rivals(ActionKind kind) {
  switch (kind) {
    case ActionKind::kBackward:
      return {kind, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return {kind, ActionKind::kBackward, ActionKind::kBackward};
    default:
      return {kind, kind, kind};
  }
}

absl::Status NeverDone(const Schedule& schedule, ActionKind kind, int32_t stage,
                       int32_t microbatch) {
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", schedule.RankOf(stage, microbatch), " never does ",
      Action{kind, stage, microbatch}.ToString(), " in its ",
      schedule.ranks[static_cast<size_t>(schedule.RankOf(stage, microbatch))]
          .size(),
      " actions"));
}

}  // namespace

Coverage::Coverage(const Schedule& schedule)
    : microbatches_(schedule.microbatches) {
  Positions none;
  none.fill(kAbsent);
  positions_.resize(static_cast<size_t>(schedule.map.stages()) *
                        static_cast<size_t>(microbatches_),
                    none);
}

absl::Status Coverage::Enter(const Schedule& schedule, int32_t rank,
                             int32_t position) {
  const Place place{rank, position};
  TESSERA_RETURN_IF_ERROR(CheckPlacement(schedule, place));
  const Action& action = ActionAt(schedule, place);
  if (!HasMicroBatch(action.kind)) return absl::OkStatus();
  Positions& positions = positions_[IndexOf(action.stage, action.microbatch)];
  for (const ActionKind rival : Rivals(action.kind)) {
    const int32_t before = positions[static_cast<size_t>(rival)];
    if (before == kAbsent) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule, place), " does again what ",
                     Describe(schedule, {rank, before}), " has done"));
  }
  positions[static_cast<size_t>(action.kind)] = position;
  return absl::OkStatus();
}

absl::Status Coverage::CheckComplete(const Schedule& schedule) const {
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    for (int32_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
      const auto has = [&](ActionKind kind) {
        return PositionOf(kind, stage, microbatch) != kAbsent;
      };
      if (!has(ActionKind::kForward)) {
        return NeverDone(schedule, ActionKind::kForward, stage, microbatch);
      }
      if (has(ActionKind::kBackward)) continue;
      const bool input = has(ActionKind::kBackwardInput);
      const bool weight = has(ActionKind::kBackwardWeight);
      if (input && weight) continue;
      const ActionKind missing = input    ? ActionKind::kBackwardWeight
                                 : weight ? ActionKind::kBackwardInput
                                          : ActionKind::kBackward;
      return NeverDone(schedule, missing, stage, microbatch);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Coverage> Coverage::Of(const Schedule& schedule) {
  TESSERA_RETURN_IF_ERROR(CheckSizes(schedule));
  Coverage coverage(schedule);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto actions = static_cast<int32_t>(schedule.ranks[rank].size());
    for (int32_t position = 0; position < actions; ++position) {
      TESSERA_RETURN_IF_ERROR(
          coverage.Enter(schedule, static_cast<int32_t>(rank), position));
    }
  }
  TESSERA_RETURN_IF_ERROR(coverage.CheckComplete(schedule));
  return coverage;
}

}  // namespace tessera::pipeline
