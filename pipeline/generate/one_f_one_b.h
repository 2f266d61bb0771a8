// 1F1B: after a warm-up every rank does one forward, one backward in turn
// (PipeDream-Flush, arXiv 2006.09503; arXiv 2104.04473, section 2.2.1).
//
//   GenerateOneFOneB({.ranks = 4, .chunks = 1, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_
#define TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Named "1f1b". Rank r warms up with min(p - 1 - r, m) forwards. Bubble
// (p - 1) (F + B), GPipe's; rank r holds min(p - r, m) activations. Any ranks
// and micro-batches, fewer than ranks too; 1 chunk. InvalidArgument as
// CheckShape.
absl::StatusOr<Schedule> GenerateOneFOneB(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ONE_F_ONE_B_H_
