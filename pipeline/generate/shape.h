// PipelineShape: how many of everything a pipeline schedule is made for.
//
//   GenerateInterleavedOneFOneB({.ranks = 4, .chunks = 2, .microbatches = 8});
#ifndef TESSERA_PIPELINE_GENERATE_SHAPE_H_
#define TESSERA_PIPELINE_GENERATE_SHAPE_H_

#include <cstdint>

namespace tessera::pipeline {

struct PipelineShape {
  int64_t ranks = 1;
  // Stages of a rank that one micro-batch passes: 2 for the V-shaped methods, 1
  // for those that have no chunks (DualPipe, whose ranks hold a stage of each
  // direction, among them).
  int64_t chunks = 1;
  int64_t microbatches = 1;

  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_SHAPE_H_
