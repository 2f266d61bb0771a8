// A building block: what the ranks do for one micro-batch of two chunks in a V,
// repeated every 6 steps (arXiv 2405.15362).
//
//   RepeatBlock("v_min", {1, 1, 1, 1}, shape);
//
// A micro-batch's way has four passes over the ranks, of unit steps: forward
// down (rank 0 to p - 1) and up, backward-input down and up. The block says how
// many steps apart neighbouring ranks are in each pass. An activation lives
// from its forward to its backward; a rank holds a sixth of the sum of both of
// its lives, at all times. Backward-weights fill the steps that are free.
#ifndef TESSERA_PIPELINE_GENERATE_BUILDING_BLOCK_H_
#define TESSERA_PIPELINE_GENERATE_BUILDING_BLOCK_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "pipeline/generate/shape.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

struct BuildingBlock {
  int64_t forward_down = 1;
  int64_t forward_up = 1;
  int64_t backward_down = 1;
  int64_t backward_up = 1;
};

// Repeats the block for each micro-batch. Between the passes there are delays
// with which no two actions of a rank ever meet: of all such those with the
// fewest activations, and then the fewest steps. The order within ranks is what
// counts: where the block waits, ranks that run it do not.
// Unimplemented where there is no such number of steps (there is for those used
// here); InvalidArgument as CheckShape.
absl::StatusOr<Schedule> RepeatBlock(std::string_view name,
                                     const BuildingBlock& block,
                                     const PipelineShape& shape);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_BUILDING_BLOCK_H_
