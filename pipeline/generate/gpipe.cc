#include "pipeline/generate/gpipe.h"

#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"

namespace tessera::pipeline {

absl::StatusOr<Schedule> GenerateGpipe(const PipelineShape& shape) {
  constexpr ShapeRule kRule = {.name = "gpipe", .chunks = 1};
  TESSERA_RETURN_IF_ERROR(CheckShape(kRule, shape));
  const int64_t m = shape.microbatches;
  TESSERA_ASSIGN_OR_RETURN(
      Schedule schedule,
      EmptySchedule(kRule.name, StageMap::Linear(shape.ranks), m));
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    ActionList list(m);
    for (int64_t i = 0; i < m; ++i) list.Add(ActionKind::kForward, rank, i);
    for (int64_t i = m - 1; i >= 0; --i) {
      list.Add(ActionKind::kBackward, rank, i);
    }
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

}  // namespace tessera::pipeline
