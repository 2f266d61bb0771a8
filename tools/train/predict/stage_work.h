// StageWork: the floating-point operations of a stage's passes on one rank, of
// a micro-batch, and of a whole step.
//
//   const StageWork work = StageWorkOf(shapes, options);
//   work.forward;                    // of matrix products and attention
//
// Counted as ModelConfig::ForwardFlopsPerToken counts, with what is computed
// again on top, in the backward of inputs. Context ranks have equal shares of
// the causal attention, as zigzag gives them.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_STAGE_WORK_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_STAGE_WORK_H_

#include "absl/status/statusor.h"
#include "tools/train/predict/rank_place.h"
#include "tools/train/predict/stage_shapes.h"

namespace tessera::train {

struct StageWork {
  double forward = 0;
  double attention = 0;       // Of these; the backward has twice as many.
  double backward_input = 0;  // With what is computed again,
  double recomputed = 0;      // which is this.
  double backward_weight = 0;

  double all() const { return forward + backward_input + backward_weight; }
};

StageWork StageWorkOf(const StageShapes& shapes, const RunOptions& options);

// Of a step, over all ranks.
struct RunWork {
  double model = 0;       // What the model needs: 3 times the forward.
  double recomputed = 0;  // On top of it.
};
RunWork RunWorkOf(const RunOptions& options);

// The share of a step's pipeline in which a rank waits for others, the mean
// over its ranks, by pipeline::Simulate: passes take their operations, messages
// nothing.
absl::StatusOr<double> PredictBubble(const RunPlan& plan);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_STAGE_WORK_H_
