// DualPipe: micro-batches enter at both ends, and what one direction sends
// hides behind what the other computes (arXiv 2412.19437, section 3.2.1).
//
//   GenerateDualPipe({.ranks = 4, .chunks = 1, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_DUALPIPE_H_
#define TESSERA_PIPELINE_GENERATE_DUALPIPE_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Ranks r and p - 1 - r hold the same two stages (StageMap::TwoWay); the first
// half of the micro-batches, the larger one where they are odd, enters at rank
// 0 and the other at rank p - 1. A forward and a backward run as a pair
// (Action::with_next) in the steady part. Every rank holds at most p + 1
// activations; the bubble, for an even m >= 2 p, is the paper's
// (p / 2 - 1) (F&B + B - 3 W), F&B being the time of a pair.
//
// The ranks must be even; any micro-batches, 1 chunk. The paper wants an even
// number of micro-batches, at least 2 p: elsewhere the pattern is the one of
// the next such number without those that are not there. InvalidArgument as
// CheckShape.
absl::StatusOr<Schedule> GenerateDualPipe(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_DUALPIPE_H_
