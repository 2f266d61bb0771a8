// Proofs about single ranks: every action exists exactly once, on the right
// rank (Coverage), and each rank's actions are in a valid order
// (CheckLocalOrder).
#ifndef TESSERA_PIPELINE_PROOF_COVERAGE_H_
#define TESSERA_PIPELINE_PROOF_COVERAGE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The position of each action on a micro-batch, with the proof that every
// micro-batch passes every stage, forward and backward, exactly once.
//
//   TESSERA_ASSIGN_OR_RETURN(Coverage coverage, Coverage::Of(schedule));
//   coverage.PositionOf(ActionKind::kForward, 2, 7);    // of 2F7 in its list
class Coverage {
 public:
  // InvalidArgument if a stage or micro-batch does not exist, an action is on
  // the wrong rank or repeated, or a forward or backward is missing. Sends and
  // receives may be missing (see MatchMessages). Memory and time are linear in
  // the number of actions.
  static absl::StatusOr<Coverage> Of(const Schedule& schedule);

  // The position in the list of schedule.RankOf(stage, microbatch); kAbsent if
  // the list does not have the action. `kind` must satisfy HasMicroBatch.
  static constexpr int32_t kAbsent = -1;
  int32_t PositionOf(ActionKind kind, int32_t stage, int32_t microbatch) const {
    return positions_[IndexOf(stage, microbatch)][static_cast<size_t>(kind)];
  }
  // The position of the action that computes the gradient of the stage's input:
  // B or I.
  int32_t PositionOfInputGradient(int32_t stage, int32_t microbatch) const {
    const int32_t whole = PositionOf(ActionKind::kBackward, stage, microbatch);
    return whole != kAbsent
               ? whole
               : PositionOf(ActionKind::kBackwardInput, stage, microbatch);
  }

 private:
  using Positions = std::array<int32_t, 8>;
  static_assert(static_cast<int>(ActionKind::kReceiveBackward) == 7);

  explicit Coverage(const Schedule& schedule);

  size_t IndexOf(int32_t stage, int32_t microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(microbatches_) +
           static_cast<size_t>(microbatch);
  }
  absl::Status Enter(const Schedule& schedule, int32_t rank, int32_t position);
  absl::Status CheckComplete(const Schedule& schedule) const;

  int32_t microbatches_;
  std::vector<Positions> positions_;
};

// Proves that on each rank every action comes after the actions of that rank
// that it depends on, and that paired actions may run together.
//
// A forward needs the forward of the previous stage; a backward its own forward
// and the backward of the next stage; the gradient of the weights that of the
// input; a send its tensor. If `receives`, an action that needs a result of
// another rank must come after its receive; otherwise such needs are ignored.
// The actions of a pair start together: neither may need the other.
// InvalidArgument names the action that comes too early, or the pair that is
// neither a forward and a B or I, nor a send and a receive with one rank.
absl::Status CheckLocalOrder(const Schedule& schedule, const Coverage& coverage,
                             bool receives);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_COVERAGE_H_
