#include "pipeline/simulate/stuck.h"

#include "absl/strings/str_cat.h"

namespace tessera::pipeline {
namespace {

Action ComputationOf(Direction direction, int32_t stage, int32_t microbatch) {
  return {direction == Direction::kForward ? ActionKind::kForward
                                           : ActionKind::kBackward,
          stage, microbatch};
}

// For what a computation takes from its neighbour.
Action MissingInput(const Schedule& schedule, Direction direction,
                    const Action& action, Messages messages) {
  const int32_t source = SourceOf(schedule, direction, action.stage);
  const int32_t mb = action.microbatch;
  if (messages == Messages::kImplied ||
      schedule.RankOf(source, mb) == schedule.RankOf(action.stage, mb)) {
    return ComputationOf(direction, source, mb);
  }
  if (messages == Messages::kRendezvous) {
    return {ReceiveOf(direction), action.stage, mb};
  }
  return {SendOf(direction), source, mb};
}

Action Missing(const Schedule& schedule, const Action& action,
               const Results& results, Messages messages) {
  const ActionKind kind = action.kind;
  const int32_t stage = action.stage;
  const int32_t mb = action.microbatch;
  const Direction direction = DirectionOf(kind);
  const auto computed = [&](Direction way) {
    return results.Sendable(way, stage, mb) != kNever;
  };
  if (Receives(kind)) {
    return {SendOf(direction), SourceOf(schedule, direction, stage), mb};
  }
  if (Sends(kind)) {
    if (!computed(direction)) return ComputationOf(direction, stage, mb);
    return {ReceiveOf(direction), TargetOf(schedule, direction, stage), mb};
  }
  if (kind == ActionKind::kBackwardWeight) {
    return {ActionKind::kBackwardInput, stage, mb};
  }
  if (kind != ActionKind::kForward && !computed(Direction::kForward)) {
    return {ActionKind::kForward, stage, mb};
  }
  return MissingInput(schedule, direction, action, messages);
}

}  // namespace

absl::Status WaitsForEver(const Schedule& schedule, Place place,
                          const Results& results, Messages messages) {
  return absl::FailedPreconditionError(absl::StrCat(
      Describe(schedule, place), " waits for ever for ",
      Missing(schedule, ActionAt(schedule, place), results, messages)
          .ToString()));
}

}  // namespace tessera::pipeline
