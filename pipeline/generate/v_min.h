// V-Min: a third of 1F1B's activations, the fewest that a V can do with (arXiv
// 2405.15362).
//
//   GenerateVMin({.ranks = 4, .chunks = 2, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_V_MIN_H_
#define TESSERA_PIPELINE_GENERATE_V_MIN_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Building block with 1 step between ranks in all passes. Every rank holds at
// most 2 p / 3 + 2 activations of a chunk, rounded up (1F1B holds 2 p of them);
// the bubble with unit times (F = I = W) is at most 4 (p - 1) + 1, 1F1B's being
// 6 (p - 1). Where times differ from each other, each repetition of the block
// waits, as the paper says: the bubble then grows with the micro-batches.
//
// Any ranks and micro-batches, 2 chunks. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateVMin(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_V_MIN_H_
