#include "pipeline/generate/sequential.h"

#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"

namespace tessera::pipeline {

absl::StatusOr<Schedule> GenerateSequential(const PipelineShape& shape) {
  constexpr ShapeRule kRule = {.name = "sequential"};
  TESSERA_RETURN_IF_ERROR(CheckShape(kRule, shape));
  const auto [p, v, m] = shape;
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(kRule.name, StageMap::Loop(p, v), m));
  for (int64_t rank = 0; rank < p; ++rank) {
    ActionList list(m);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t chunk = 0; chunk < v; ++chunk) {
        list.Add(ActionKind::kForward, chunk * p + rank, i);
      }
      for (int64_t chunk = v - 1; chunk >= 0; --chunk) {
        list.Add(ActionKind::kBackward, chunk * p + rank, i);
      }
    }
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

}  // namespace tessera::pipeline
