// A pipeline schedule (Schedule) and its parts: the actions of each rank
// (Action) and the assignment of stages to ranks (StageMap).
#ifndef TESSERA_PIPELINE_SCHEDULE_SCHEDULE_H_
#define TESSERA_PIPELINE_SCHEDULE_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::pipeline {

enum class ActionKind : uint8_t {
  kForward,          // F: computes the output of a stage from its input.
  kBackward,         // B: computes the gradients of input and weights.
  kBackwardInput,    // I: computes only the gradient of the input.
  kBackwardWeight,   // W: computes the gradient of the weights, after I.
  kSendForward,      // SEND_F: sends the output to the next stage.
  kReceiveForward,   // RECV_F: receives the input from the previous stage.
  kSendBackward,     // SEND_B: sends input gradients to the previous stage.
  kReceiveBackward,  // RECV_B: receives output gradients from the next stage.
  kUnshard,          // UNSHARD: gathers the stage's parameters (ZeRO-3).
  kReshard,          // RESHARD: frees the gathered parameters.
  kReduceGradient,   // REDUCE_GRAD: reduces its gradients over replicas.
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

// True for F, B, I and W, which occupy the rank's processor.
constexpr bool Computes(ActionKind kind) {
  return kind <= ActionKind::kBackwardWeight;
}
// True for SEND_F, RECV_F, SEND_B and RECV_B.
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
// True if the action belongs to a micro-batch. Actions on parameters do not.
constexpr bool HasMicroBatch(ActionKind kind) {
  return kind <= ActionKind::kReceiveBackward;
}
// True for B and I, which compute the gradient for the previous stage.
constexpr bool GivesInputGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}
// True for F, B and I, which read the stage's parameters. W does not: the
// gradients of weights are products of activations and gradients.
constexpr bool NeedsParameters(ActionKind kind) {
  return kind <= ActionKind::kBackwardInput;
}
// True for B and W, which finish the micro-batch in the stage.
constexpr bool GivesWeightGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

inline constexpr int32_t kNoMicroBatch = -1;
// The largest index of a stage or micro-batch.
inline constexpr int32_t kMostIndex = (1 << 24) - 1;

// One action of a rank.
//
//   const Action forward{ActionKind::kForward, /*stage=*/2, /*microbatch=*/7};
//   forward.ToString();                         // "2F7"
//   ParseCell("(0F8;7B4)OVERLAP_F_B");          // two actions, run together
//   ParseCell("(1SEND_F3;1RECV_B0)");           // both messages at once
//
// The notation is that of PyTorch's pipeline schedules
// (torch.distributed.pipelining.schedules): stage, kind, micro-batch. PyTorch
// has no notation for a concurrent send and receive; ours is the pair in
// parentheses.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int32_t stage = 0;
  int32_t microbatch = kNoMicroBatch;
  // True if this action and the next one of the rank's list form a pair that
  // runs together. A pair is either a forward and a backward of different
  // micro-batches, whose communication overlaps with each other's computation
  // (DualPipe, arXiv 2412.19437, section 3.2.1), or a send and a receive with
  // the same rank, which run concurrently, in whatever order the peer executes
  // them.
  bool with_next = false;

  // "2F7", "3UNSHARD". Ignores with_next.
  std::string ToString() const;

  friend bool operator==(const Action&, const Action&) = default;
};

std::ostream& operator<<(std::ostream& os, const Action& action);

// Parses a text such as "2F7" or "3UNSHARD". InvalidArgument for any other
// text.
absl::StatusOr<Action> ParseAction(std::string_view text);

// Parses a cell of a schedule's table: one action, a pair that runs together,
// or none if the cell is empty. InvalidArgument for any other text.
absl::StatusOr<std::vector<Action>> ParseCell(std::string_view text);

// The rank of each stage of a model.
//
//   StageMap::Loop(4, 2)->RankOf(5);     // 1: stages 1 and 5 are rank 1's
//
//   linear    stage s on rank s
//   loop      chunk c of rank r is stage c p + r (interleaved 1F1B, arXiv
//             2104.04473, section 2.2)
//   zigzag    chunks alternate in direction, so that with two chunks (a V) rank
//   0
//             has the first and the last stage (arXiv 2401.10241, section 6)
//   two-way   stage s is held by ranks s and p - 1 - s: micro-batches enter at
//             both ends (DualPipe, arXiv 2412.19437, section 3.2.1)
class StageMap {
 public:
  // One stage on one rank.
  StageMap() : rank_of_({0}) {}

  // InvalidArgument if a count is less than 1 or there are more than
  // kMostStages stages.
  static constexpr int64_t kMostStages = int64_t{1} << 20;
  static absl::StatusOr<StageMap> Linear(int64_t ranks);
  static absl::StatusOr<StageMap> Loop(int64_t ranks, int64_t chunks);
  static absl::StatusOr<StageMap> Zigzag(int64_t ranks, int64_t chunks);
  static absl::StatusOr<StageMap> TwoWay(int64_t ranks);

  // Makes any other map from the rank of each stage. InvalidArgument if a rank
  // below the largest has no stage.
  static absl::StatusOr<StageMap> Of(std::vector<int32_t> rank_of_stage);
  // Makes a two-way map from the rank r of each stage for micro-batches that
  // enter at the front; micro-batches that enter at the back use rank p - 1 -
  // r.
  static absl::StatusOr<StageMap> TwoWayOf(std::vector<int32_t> rank_of_stage);

  // Divides each stage s into parts[s] consecutive stages on the same rank or
  // ranks. A stage with 0 parts is removed, which may leave a rank without
  // stages. InvalidArgument unless `parts` has one entry for each stage and at
  // least one entry is positive.
  absl::StatusOr<StageMap> Split(std::span<const int64_t> parts) const;

  int64_t ranks() const { return ranks_; }
  int64_t stages() const { return static_cast<int64_t>(rank_of_.size()); }
  bool two_way() const { return two_way_; }

  // The rank of `stage`, for micro-batches that enter at the front.
  int32_t RankOf(int32_t stage) const {
    return rank_of_[static_cast<size_t>(stage)];
  }
  // The rank of `stage`, for micro-batches that enter at the back. Differs from
  // RankOf only if the map is two-way.
  int32_t RankFromBack(int32_t stage) const {
    return two_way_ ? static_cast<int32_t>(ranks_) - 1 - RankOf(stage)
                    : RankOf(stage);
  }

  // The stages that a rank holds, ascending.
  std::vector<int32_t> StagesOf(int32_t rank) const;

  friend bool operator==(const StageMap&, const StageMap&) = default;

 private:
  StageMap(std::vector<int32_t> rank_of, int64_t ranks, bool two_way)
      : rank_of_(std::move(rank_of)), ranks_(ranks), two_way_(two_way) {}

  std::vector<int32_t> rank_of_;
  int64_t ranks_ = 1;
  bool two_way_ = false;
};

// Example:
//
//   Schedule schedule;
//   schedule.name = "gpipe";
//   schedule.map = *StageMap::Linear(2);
//   schedule.microbatches = 1;
//   schedule.ranks = {{{ActionKind::kForward, 0, 0}, ...}, {...}};
//   WriteCsv(schedule);                           // "0F0,..."
//
// A schedule is a plain value: generators make it (pipeline/generate), passes
// lower it (pipeline/passes), Validate proves it, Simulate prices it, Executor
// runs it, and pipeline/draw draws it.
struct Schedule {
  std::string name;
  StageMap map;
  int32_t microbatches = 0;
  // The actions of each rank: map.ranks() lists.
  std::vector<std::vector<Action>> ranks;

  // In a two-way map the first half of the micro-batches (the larger half if
  // their number is odd) enters at the front, the second half at the back.
  bool EntersAtFront(int32_t microbatch) const {
    return !map.two_way() || microbatch < microbatches - microbatches / 2;
  }
  // The rank that computes the stage for the micro-batch.
  int32_t RankOf(int32_t stage, int32_t microbatch) const {
    return EntersAtFront(microbatch) ? map.RankOf(stage)
                                     : map.RankFromBack(stage);
  }

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_SCHEDULE_H_
