// ActivationMemory: what a rank's stages hold of micro-batches at most, and the
// tensors between its stages and others.
//
//   TESSERA_ASSIGN_OR_RETURN(const ActivationMemory memory,
//                            PredictActivations(plan, place));
//
// Found by going through the rank's list of the schedule, so that micro-batches
// in flight, and passes that are apart (I and W), count as they come.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_ACTIVATION_MEMORY_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_ACTIVATION_MEMORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/predict/rank_place.h"

namespace tessera::train {

struct ActivationMemory {
  // Of each of the rank's stages, TensorPool::peak_bytes; and the blocks that
  // its pool makes and keeps, which is what the process has of them.
  std::vector<int64_t> stage_peaks = {};
  int64_t pools = 0;
  // The most that is held at a time of all stages together.
  int64_t peak = 0;
  // RankTimeline::peak_bytes of the executor, at most: sends of 32 KiB and more
  // are taken to be under way as long as they may be.
  int64_t boundaries = 0;
  // What layers keep for themselves: gathered tokens and partial sums under
  // sequence parallelism, what goes round in ring attention.
  int64_t layers = 0;
  int64_t micro_batches = 0;  // In flight at a time, by stage, at most.
};

absl::StatusOr<ActivationMemory> PredictActivations(const RunPlan& plan,
                                                    const RankPlace& place);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_ACTIVATION_MEMORY_H_
