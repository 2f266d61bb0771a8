// ZB-V: no bubble in 1F1B's memory. Two chunks on each rank lie in a V, so that
// a micro-batch turns round on the last rank and ends its forward where it
// began (arXiv 2401.10241, section 6).
//
//   GenerateZbV({.ranks = 4, .chunks = 2, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_ZB_V_H_
#define TESSERA_PIPELINE_GENERATE_ZB_V_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// No bubble on any rank (from its first action to its last) with unit times
// (F = I = W) and m >= 2 p - 1; every rank holds at most 2 p activations of a
// chunk, as many as 1F1B on rank 0. Any ranks and micro-batches (fewer than
// 2 p - 1 are the pattern of 2 p - 1 without those that are not there), 2
// chunks. InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateZbV(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_ZB_V_H_
