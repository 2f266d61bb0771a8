#include "pipeline/generate/dualpipev.h"

#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"
#include "pipeline/generate/eight_steps.h"

namespace tessera::pipeline {

absl::StatusOr<Schedule> GenerateDualPipeV(const PipelineShape& shape) {
  const int64_t p = shape.ranks;
  const ShapeRule rule = {.name = "dualpipev",
                          .chunks = 2,
                          .least_microbatches = 2 * RanksOrLimit(shape)};
  TESSERA_RETURN_IF_ERROR(CheckShape(rule, shape));
  const int64_t m = shape.microbatches;
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(rule.name, StageMap::Zigzag(p, 2), m));
  for (int64_t rank = 0; rank < p; ++rank) {
    ActionList list(m);
    StageTurns down(list, rank);
    StageTurns up(list, 2 * p - 1 - rank);
    const DualPipeRank place = {.depth = rank,
                                .most_depth = p - 1,
                                .turns = rule.PatternMicroBatches(m)};
    DualPipeSteps(place, list, down, up);
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

}  // namespace tessera::pipeline
