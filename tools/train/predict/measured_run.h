// MeasureRun: what the ranks of a small run hold and send, by the runtime's own
// accounting. For tests.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_MEASURED_RUN_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_MEASURED_RUN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "offload/tier/accounting.h"
#include "tools/train/loop/train_rank.h"
#include "tools/train/predict/counting_engine.h"

namespace tessera::train {

struct MeasuredRank {
  // Of ShardedState, over the whole run.
  offload::Usage state;
  // Of pools and of tensors between stages, after the last step.
  int64_t activations = 0;
  // Collectives of one step, the last.
  CollectiveCount::Table collectives;
  // Messages of the last step in the pipeline's group and the context group.
  std::map<collectives::OpKind, int64_t> pipeline_messages;
  std::map<collectives::OpKind, int64_t> context_messages;
};

// Three steps with threads for ranks. `prepare` may give a rank's options
// tiers; null: as they are.
absl::StatusOr<std::vector<MeasuredRank>> MeasureRun(
    const RunOptions& options,
    const std::function<absl::Status(int64_t rank, RunOptions&)>& prepare = {});

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_MEASURED_RUN_H_
