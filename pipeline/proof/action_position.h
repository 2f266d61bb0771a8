// Positions of actions in a schedule (ActionPosition), with the text that
// errors use for them (Describe), and the neighbours and partners of actions.
//
//   Describe(schedule, {1, 3});   // "rank 1, action 3 (1SEND_B0)"
#ifndef TESSERA_PIPELINE_PROOF_ACTION_POSITION_H_
#define TESSERA_PIPELINE_PROOF_ACTION_POSITION_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The position of an action in its rank's list, from 0.
struct ActionPosition {
  int32_t rank = -1;
  int32_t position = -1;

  friend bool operator==(const ActionPosition&,
                         const ActionPosition&) = default;
};

inline const Action& ActionAt(const Schedule& schedule, ActionPosition place) {
  return schedule.ranks[static_cast<size_t>(place.rank)]
                       [static_cast<size_t>(place.position)];
}

inline std::string Describe(const Schedule& schedule, ActionPosition place) {
  return absl::StrCat("rank ", place.rank, ", action ", place.position, " (",
                      ActionAt(schedule, place).ToString(), ")");
}

// The direction of a message: activations go from a stage to the next one,
// gradients to the previous one.
enum class PassDirection : uint8_t { kForward, kBackward };

constexpr PassDirection DirectionOf(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kSendForward ||
                 kind == ActionKind::kReceiveForward
             ? PassDirection::kForward
             : PassDirection::kBackward;
}
constexpr ActionKind SendOf(PassDirection direction) {
  return direction == PassDirection::kForward ? ActionKind::kSendForward
                                              : ActionKind::kSendBackward;
}
constexpr ActionKind ReceiveOf(PassDirection direction) {
  return direction == PassDirection::kForward ? ActionKind::kReceiveForward
                                              : ActionKind::kReceiveBackward;
}

inline constexpr int32_t kNoStage = -1;

// The stage that passes tensors to `stage` in that direction, or kNoStage at
// the pipeline's end.
inline int32_t SourceOf(const Schedule& schedule, PassDirection direction,
                        int32_t stage) {
  if (direction == PassDirection::kForward) return stage - 1;
  return stage + 1 < schedule.map.stages() ? stage + 1 : kNoStage;
}

// The stage to which `stage` passes tensors, or kNoStage.
inline int32_t TargetOf(const Schedule& schedule, PassDirection direction,
                        int32_t stage) {
  return SourceOf(schedule,
                  direction == PassDirection::kForward
                      ? PassDirection::kBackward
                      : PassDirection::kForward,
                  stage);
}

// The rank at the other end of a send or receive. Precondition: it exists.
inline int32_t PeerOf(const Schedule& schedule, const Action& action) {
  const PassDirection direction = DirectionOf(action.kind);
  const int32_t other = Sends(action.kind)
                            ? TargetOf(schedule, direction, action.stage)
                            : SourceOf(schedule, direction, action.stage);
  return schedule.RankOf(other, action.microbatch);
}

// How many actions start together at `position`: 2 for a pair (with_next).
inline int32_t UnitSize(const std::vector<Action>& actions, int32_t position) {
  const auto at = static_cast<size_t>(position);
  return actions[at].with_next && at + 1 < actions.size() ? 2 : 1;
}

// The units of a rank's list, in order. A unit is what the rank starts
// together: one action, or a pair. The spans point into `schedule`.
// InvalidArgument, with rank and position, if the last action of the list has
// with_next set, or three actions would run together.
absl::StatusOr<std::vector<std::span<const Action>>> UnitsOf(
    const Schedule& schedule, size_t rank);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_ACTION_POSITION_H_
