// GPipe: all micro-batches forward, then all of them backward (arXiv
// 1811.06965, figure 2).
//
//   GenerateGpipe({.ranks = 4, .chunks = 1, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_GPIPE_H_
#define TESSERA_PIPELINE_GENERATE_GPIPE_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Backward goes from the last micro-batch to the first, as in figure 2 of the
// paper: the activations made last are the first to be freed. Bubble
// (p - 1) (F + B); holds m activations. Any ranks and micro-batches, 1 chunk.
// InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateGpipe(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_GPIPE_H_
