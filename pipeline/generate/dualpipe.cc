#include "pipeline/generate/dualpipe.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"
#include "pipeline/generate/eight_steps.h"

namespace tessera::pipeline {
namespace {

std::vector<Action> RankActions(int64_t rank, const PipelineShape& shape,
                                int64_t pattern_microbatches) {
  const auto [p, v, m] = shape;
  const int64_t at_front = m - m / 2;
  ActionList list(m);
  StageTurns front(list, rank, 0, at_front);
  StageTurns back(list, p - 1 - rank, at_front);
  const bool near_front = rank < p / 2;
  const DualPipeRank place = {.depth = near_front ? rank : p - 1 - rank,
                              .most_depth = p / 2 - 1,
                              .turns = pattern_microbatches / 2};
  DualPipeSteps(place, list, near_front ? front : back,
                near_front ? back : front);
  return std::move(list).Take();
}

}  // namespace

absl::StatusOr<Schedule> GenerateDualPipe(const PipelineShape& shape) {
  const ShapeRule rule = {.name = "dualpipe",
                          .chunks = 1,
                          .even_ranks = true,
                          .least_microbatches = 2 * RanksOrLimit(shape),
                          .multiple_of = 2};
  TESSERA_RETURN_IF_ERROR(CheckShape(rule, shape));
  TESSERA_ASSIGN_OR_RETURN(
      Schedule schedule, EmptySchedule(rule.name, StageMap::TwoWay(shape.ranks),
                                       shape.microbatches));
  const int64_t pattern_microbatches =
      rule.PatternMicroBatches(shape.microbatches);
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    schedule.ranks.push_back(RankActions(rank, shape, pattern_microbatches));
  }
  return schedule;
}

}  // namespace tessera::pipeline
