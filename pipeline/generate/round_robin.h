// Round-robin: micro-batches go round the ranks depth-first, all forward, then
// all backward.
//
//   GenerateRoundRobin({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// Stages lie in turn over the ranks (StageMap::Loop). p micro-batches fill the
// ring and go round it, chunk by chunk, before the next p enter: the
// depth-first order of arXiv 2211.05953, without the alternation
// of forward and backward that interleaved 1F1B has. With 1 chunk it is GPipe.
#ifndef TESSERA_PIPELINE_GENERATE_ROUND_ROBIN_H_
#define TESSERA_PIPELINE_GENERATE_ROUND_ROBIN_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Backward is the mirror image of forward. Bubble (p - 1) (F + B) of one chunk
// where p divides m; holds chunks x m activations. Any counts. InvalidArgument
// as CheckShape.
absl::StatusOr<Schedule> GenerateRoundRobin(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ROUND_ROBIN_H_
