// Coverage: where each action on a micro-batch is, and the proof that every
// micro-batch passes every stage, forward and backward, exactly once.
//
//   TESSERA_ASSIGN_OR_RETURN(Coverage coverage, Coverage::Of(schedule));
//   coverage.PositionOf(ActionKind::kForward, 2, 7);    // of 2F7 in its list
#ifndef TESSERA_PIPELINE_PROOF_COVERAGE_H_
#define TESSERA_PIPELINE_PROOF_COVERAGE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

class Coverage {
 public:
  // InvalidArgument where a stage or micro-batch does not exist, an action is
  // another rank's, is done twice, or a forward or backward is missing. Sends
  // and receives may be missing (see MatchMessages). Memory and time are
  // linear in the number of actions.
  static absl::StatusOr<Coverage> Of(const Schedule& schedule);

  // In the list of schedule.RankOf(stage, microbatch); kAbsent where it is not
  // there. `kind` is of a micro-batch.
  static constexpr int32_t kAbsent = -1;
  int32_t PositionOf(ActionKind kind, int32_t stage, int32_t microbatch) const {
    return positions_[IndexOf(stage, microbatch)][static_cast<size_t>(kind)];
  }
  // Of what gives the gradient of the stage's input: B or I.
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

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_COVERAGE_H_
