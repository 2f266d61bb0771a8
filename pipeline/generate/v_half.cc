#include "pipeline/generate/v_half.h"

#include "pipeline/generate/building_block.h"

namespace tessera::pipeline {

absl::StatusOr<Schedule> GenerateVHalf(const PipelineShape& shape) {
  constexpr BuildingBlock kBlock = {
      .forward_down = 2, .forward_up = 1, .backward_down = 2, .backward_up = 1};
  return RepeatBlock("v_half", kBlock, shape);
}

}  // namespace tessera::pipeline
