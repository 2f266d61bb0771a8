// Action: one thing that a rank does in a pipeline schedule.
//
//   const Action forward{ActionKind::kForward, /*stage=*/2, /*microbatch=*/7};
//   forward.ToString();                         // "2F7"
//   ParseCell("(0F8;7B4)OVERLAP_F_B");          // two actions, run together
//   ParseCell("(1SEND_F3;1RECV_B0)");           // both messages at once
//
// The notation is the one of PyTorch's pipeline schedules (torch.distributed
// .pipelining.schedules): stage, kind, micro-batch. It has no notation for a
// send and a receive at once; ours is the pair in brackets.
#ifndef TESSERA_PIPELINE_SCHEDULE_ACTION_H_
#define TESSERA_PIPELINE_SCHEDULE_ACTION_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::pipeline {

enum class ActionKind : uint8_t {
  kForward,          // F: activations of a stage from those of the one before.
  kBackward,         // B: gradients of input and weights at once.
  kBackwardInput,    // I: the gradient of the stage's input alone,
  kBackwardWeight,   // W: and, at any time after it, that of its weights.
  kSendForward,      // SEND_F: the stage's output, to the stage after it.
  kReceiveForward,   // RECV_F: the stage's input, from the stage before it.
  kSendBackward,     // SEND_B: the gradient of its input, to the one before.
  kReceiveBackward,  // RECV_B: the gradient of its output, from the one after.
  kUnshard,          // UNSHARD: its parameters are gathered (ZeRO-3).
  kReshard,          // RESHARD: and given up again.
  kReduceGradient,   // REDUCE_GRAD: its gradients are reduced over replicas.
};

inline constexpr std::array kActionKinds = {
    ActionKind::kForward,        ActionKind::kBackward,
    ActionKind::kBackwardInput,  ActionKind::kBackwardWeight,
    ActionKind::kSendForward,    ActionKind::kReceiveForward,
    ActionKind::kSendBackward,   ActionKind::kReceiveBackward,
    ActionKind::kUnshard,        ActionKind::kReshard,
    ActionKind::kReduceGradient,
};

// "F", "SEND_F"...
std::string_view ActionKindName(ActionKind kind);

// F, B, I or W: what takes the rank's processor.
constexpr bool Computes(ActionKind kind) {
  return kind <= ActionKind::kBackwardWeight;
}
// SEND_F, RECV_F, SEND_B or RECV_B.
constexpr bool Communicates(ActionKind kind) {
  return kind >= ActionKind::kSendForward &&
         kind <= ActionKind::kReceiveBackward;
}
constexpr bool Sends(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}
constexpr bool Receives(ActionKind kind) {
  return kind == ActionKind::kReceiveForward ||
         kind == ActionKind::kReceiveBackward;
}
// Of a micro-batch: all but what concerns a stage's parameters.
constexpr bool HasMicroBatch(ActionKind kind) {
  return kind <= ActionKind::kReceiveBackward;
}
// B or I: what hands the gradient on to the stage before.
constexpr bool GivesInputGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
// F, B or I: what computes with the stage's parameters. The gradients of
// weights are products of activations and gradients alone.
constexpr bool NeedsParameters(ActionKind kind) {
  return kind <= ActionKind::kBackwardInput;
}
// B or W: what finishes the micro-batch in the stage.
constexpr bool GivesWeightGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

inline constexpr int32_t kNoMicroBatch = -1;
// The largest number of a stage or micro-batch.
inline constexpr int32_t kMostIndex = (1 << 24) - 1;

struct Action {
  ActionKind kind = ActionKind::kForward;
  int32_t stage = 0;
  int32_t microbatch = kNoMicroBatch;
  // Runs together with the action after it in the rank's list: a forward and a
  // backward, of different micro-batches, whose communication hides behind each
  // other's computation (DualPipe, arXiv 2412.19437, section 3.2.1). Or a send
  // and a receive with the same rank, which both happen at once, in whatever
  // order the other rank does them.
  bool with_next = false;

  // "2F7", "3UNSHARD"; without regard to with_next.
  std::string ToString() const;

  friend bool operator==(const Action&, const Action&) = default;
};

std::ostream& operator<<(std::ostream& os, const Action& action);

// What "2F7" or "3UNSHARD" is. InvalidArgument where it is no action.
absl::StatusOr<Action> ParseAction(std::string_view text);

// A cell of a schedule's table: one action, or a pair that runs together. An
// empty cell has none. InvalidArgument where it is neither.
absl::StatusOr<std::vector<Action>> ParseCell(std::string_view text);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_ACTION_H_
