// Looped breadth-first: all micro-batches through a chunk of the model before
// any enters the rank's next chunk (arXiv 2211.05953, section 4).
//
//   GenerateLoopedBfs({.ranks = 4, .chunks = 2, .microbatches = 8});
//
// A chunk's parameters are used in two runs only, one forward and one backward,
// which is what a fully sharded data parallelism wants: one gather for each.
#ifndef TESSERA_PIPELINE_GENERATE_LOOPED_BFS_H_
#define TESSERA_PIPELINE_GENERATE_LOOPED_BFS_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Chunks lie in a loop (StageMap::Loop); backward goes from the last chunk to
// the first, micro-batches in the order in which they came. Bubble
// (p - 1) (F + B) of one chunk where m >= p; holds chunks x m activations. Any
// counts. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateLoopedBfs(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_LOOPED_BFS_H_
