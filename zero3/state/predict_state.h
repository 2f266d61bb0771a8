// PredictState: the memory that a rank's model state needs in a training step.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const offload::Usage usage,
//       PredictState(model, {.stage = 3}, /*ranks=*/64));
//   usage.of(offload::Purpose::kOptimizer).current;  // Bytes between steps.
//   usage.peak;                                      // In the step.
#ifndef TESSERA_ZERO3_STATE_PREDICT_STATE_H_
#define TESSERA_ZERO3_STATE_PREDICT_STATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "offload/tier/accounting.h"
#include "topology/rank.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/state_options.h"

namespace tessera::zero3 {

// Creates the state of `rank` of `ranks` data-parallel ranks and runs one step:
// a forward over the groups of the model, each of which is gathered, used and
// released; a backward in the opposite order, which reduces the gradients of
// each group; and the optimizer's step. Memory is only counted, nothing is
// computed, and no other rank exists. Returns the bytes of the rank's own
// memory as ShardedState::usage() counts them after the step: `current` is held
// between steps, `peak` also during a step.
//
// The queue, operations, budget and key prefix of `options` are ignored.
// MatrixUpdates are assumed to need no further memory. InvalidArgument if the
// model has no parameters, there is no such rank, the options are invalid
// (CheckOptions), or state is in tiers, whose memory is not this rank's.
absl::StatusOr<offload::Usage> PredictState(
    const ModelParameters& model, const ShardedStateOptions& options,
    int64_t ranks, topology::Rank rank = topology::Rank(0));

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_PREDICT_STATE_H_
