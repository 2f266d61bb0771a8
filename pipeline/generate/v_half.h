// V-Half: half of 1F1B's activations (arXiv 2405.15362).
//
//   GenerateVHalf({.ranks = 4, .chunks = 2, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_V_HALF_H_
#define TESSERA_PIPELINE_GENERATE_V_HALF_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Building block with 2 steps between ranks down and 1 up. Every rank holds at
// most p + 1 activations of a chunk where p is odd, p + 2 where it is even
// (1F1B holds 2 p of them); the bubble with unit times (F = I = W) is at most
// 7 / 2 (p - 1) + 3 / 2 where m >= p, 1F1B's being 6 (p - 1). Where times
// differ from each other, each repetition of the block may wait a little, as
// the paper says: the bubble then grows with the micro-batches.
//
// Any ranks and micro-batches, 2 chunks. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateVHalf(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_V_HALF_H_
