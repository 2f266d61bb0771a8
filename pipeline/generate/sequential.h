// Sequential: no pipelining. One micro-batch at a time goes forward through all
// stages and back again; the schedule that others are measured against.
//
//   GenerateSequential({.ranks = 4, .chunks = 1, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_SEQUENTIAL_H_
#define TESSERA_PIPELINE_GENERATE_SEQUENTIAL_H_

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Stages lie in turn over the ranks (StageMap::Loop). Takes p m (F + B) in
// stages of F and B; holds `chunks` activations on each rank. Any counts.
// InvalidArgument as CheckShape.
absl::StatusOr<Schedule> GenerateSequential(const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_SEQUENTIAL_H_
