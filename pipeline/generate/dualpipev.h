// DualPipeV: DualPipe cut in half. Each rank holds the two stages that a pair
// of DualPipe's ranks held, in a V, so that no parameters are held twice (the
// "cut-in-half" of arXiv 2412.19437's DualPipe, as published with its code).
//
//   GenerateDualPipeV({.ranks = 4, .chunks = 2, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_DUALPIPEV_H_
#define TESSERA_PIPELINE_GENERATE_DUALPIPEV_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// A forward and a backward run as a pair (Action::with_next) in the steady
// part. Every rank holds at most 2 p + 1 activations of a chunk. Any ranks and
// micro-batches (fewer than 2 p are the pattern of 2 p without those that are
// not there), 2 chunks. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateDualPipeV(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_DUALPIPEV_H_
