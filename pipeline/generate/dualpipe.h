// The generators of DualPipe and DualPipeV (arXiv 2412.19437, section 3.2.1),
// and the eight steps that they share (DualPipeSteps).
#ifndef TESSERA_PIPELINE_GENERATE_DUALPIPE_H_
#define TESSERA_PIPELINE_GENERATE_DUALPIPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "pipeline/generate/draft.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

struct DualPipeRank {
  // Distance from the rank at which micro-batches of `near` enter, and its
  // maximum, on the rank where they turn or meet the other direction.
  int64_t depth = 0;
  int64_t most_depth = 0;
  // Micro-batches in each of the two stages; at least 2 (most_depth + 1).
  int64_t turns = 0;
};

// Adds the actions of a rank with two stages: the eight steps of DualPipe.
//
//   ActionList list(m);
//   StageTurns near(list, stage);
//   StageTurns far(list, other);
//   DualPipeSteps({.depth = r, .most_depth = p - 1, .turns = m}, list, near,
//                 far);
//
// `near` is the stage whose micro-batches have passed `depth` ranks, `far` the
// other one.
void DualPipeSteps(const DualPipeRank& rank, ActionList& list, StageTurns& near,
                   StageTurns& far);

// DualPipe: micro-batches enter at both ends, and messages of one direction
// overlap with computations of the other (arXiv 2412.19437, section 3.2.1).
//
//   GenerateDualPipe({.ranks = 4, .chunks = 1, .microbatches = 8});
//
// Ranks r and p - 1 - r hold the same two stages (StageMap::TwoWay); the first
// half of the micro-batches (the larger half if their number is odd) enters at
// rank 0, the second half at rank p - 1. A forward and a backward run as a pair
// (Action::with_next) in the steady part. Every rank holds at most p + 1
// activations; the bubble, for an even m >= 2 p, is the paper's (p / 2 - 1)
// (F&B + B - 3 W), where F&B is the time of a pair.
//
// Requires an even number of ranks and 1 chunk; any number of micro-batches.
// The paper requires an even number of micro-batches, at least 2 p: other
// numbers use the pattern of the next such number without the extra ones.
// InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateDualPipe(const PipelineShape& shape);

// DualPipeV: DualPipe cut in half. Each rank holds the two stages that a pair
// of DualPipe's ranks held, in a V, so that no parameters are held twice (the
// "cut-in-half" of arXiv 2412.19437's DualPipe, as published with its code).
//
//   GenerateDualPipeV({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// A forward and a backward run as a pair (Action::with_next) in the steady
// part. Every rank holds at most 2 p + 1 activations of a chunk. Requires 2
// chunks; any numbers of ranks and micro-batches (fewer than 2 p use the
// pattern of 2 p without the extra ones). InvalidArgument as for CheckShape.
absl::StatusOr<Schedule> GenerateDualPipeV(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_DUALPIPE_H_
