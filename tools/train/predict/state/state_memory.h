// StateMemory: the bytes of a rank's model state, as ShardedState's accounting
// counts them, in memory and in tiers.
//
//   TESSERA_ASSIGN_OR_RETURN(const StateMemory memory, PredictState(state));
//   memory.parameters + memory.gradients + memory.optimizer;
//
// Of parameters and gradients that are held whole for a step, and of what is
// gathered and reduced, `buffers` has the most at a time.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_STATE_STATE_MEMORY_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_STATE_STATE_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/train/predict/state/state_plan.h"

namespace tessera::train {

struct StateMemory {
  // In the rank's own memory, by what usage() calls them; their peaks.
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t buffers = 0;
  int64_t gathered = 0;  // Weights that are whole for a while; in buffers.
  // In tiers.
  int64_t host = 0;
  int64_t files = 0;
  // Aligned memory through which a file tier reads and writes.
  int64_t staging = 0;
  // What a checkpoint copies to memory, until it is written.
  int64_t snapshot = 0;

  // Of the process: files are elsewhere.
  int64_t in_memory() const {
    return parameters + gradients + optimizer + buffers + host + staging;
  }
};

// By zero3::MemoryModel, for a pipeline, which holds gradients for a step.
absl::StatusOr<StateMemory> PredictState(const StatePlan& plan);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_STATE_STATE_MEMORY_H_
