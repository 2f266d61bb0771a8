#include "pipeline/generate/v_min.h"

#include "pipeline/generate/building_block.h"

namespace tessera::pipeline {

absl::StatusOr<Schedule> GenerateVMin(const PipelineShape& shape) {
  return RepeatBlock("v_min", BuildingBlock{}, shape);
}

}  // namespace tessera::pipeline
