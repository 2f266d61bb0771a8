// Results: which results of computations are there, and since when.
#ifndef TESSERA_PIPELINE_SIMULATE_RESULTS_H_
#define TESSERA_PIPELINE_SIMULATE_RESULTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipeline/proof/place.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

inline constexpr double kNever = -1;

class Results {
 public:
  explicit Results(const Schedule& schedule)
      : microbatches_(static_cast<size_t>(schedule.microbatches)),
        cells_(static_cast<size_t>(schedule.map.stages()) * microbatches_) {
    // The pipeline's ends wait for nobody.
    for (size_t mb = 0; mb < microbatches_; ++mb) {
      cells_[mb].input = 0;
      cells_[cells_.size() - 1 - mb].output_gradient = 0;
    }
  }

  // When all is there that a computation needs; kNever while something is not.
  double ReadyFor(const Action& action) const {
    const Cell& cell = At(action.stage, action.microbatch);
    if (action.kind == ActionKind::kForward) return cell.input;
    if (action.kind == ActionKind::kBackwardWeight) return cell.input_gradient;
    if (cell.forward == kNever || cell.output_gradient == kNever) return kNever;
    return std::max(cell.forward, cell.output_gradient);
  }

  // A computation has ended.
  void Done(const Action& action, double end) {
    Cell& cell = At(action.stage, action.microbatch);
    if (action.kind == ActionKind::kForward) cell.forward = end;
    if (GivesInputGradient(action.kind)) cell.input_gradient = end;
  }

  // What a stage has to send on in the direction; kNever before it is computed.
  double Sendable(Direction direction, int32_t stage,
                  int32_t microbatch) const {
    const Cell& cell = At(stage, microbatch);
    return direction == Direction::kForward ? cell.forward
                                            : cell.input_gradient;
  }

  // What a stage waits for has come, from its neighbour on either side.
  void Arrived(Direction direction, int32_t stage, int32_t microbatch,
               double time) {
    Cell& cell = At(stage, microbatch);
    (direction == Direction::kForward ? cell.input : cell.output_gradient) =
        time;
  }

 private:
  struct Cell {
    double input = kNever;
    double forward = kNever;
    double output_gradient = kNever;
    double input_gradient = kNever;
  };

  size_t Index(int32_t stage, int32_t microbatch) const {
    return static_cast<size_t>(stage) * microbatches_ +
           static_cast<size_t>(microbatch);
  }
  Cell& At(int32_t stage, int32_t microbatch) {
    return cells_[Index(stage, microbatch)];
  }
  const Cell& At(int32_t stage, int32_t microbatch) const {
    return cells_[Index(stage, microbatch)];
  }

  size_t microbatches_;
  std::vector<Cell> cells_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_RESULTS_H_
