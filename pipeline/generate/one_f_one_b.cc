#include "pipeline/generate/one_f_one_b.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"

namespace tessera::pipeline {
namespace {

std::vector<Action> RankActions(int64_t rank, const PipelineShape& shape) {
  const int64_t m = shape.microbatches;
  ActionList list(m);
  StageTurns stage(list, rank);
  const int64_t warm_up = std::min(shape.ranks - 1 - rank, m);
  while (stage.forwards() < warm_up) stage.Forward();
  while (stage.forwards() < m) {
    stage.Forward();
    stage.Backward();
  }
  while (stage.backwards() < m) stage.Backward();
  return std::move(list).Take();
}

}  // namespace

absl::StatusOr<Schedule> GenerateOneFOneB(const PipelineShape& shape) {
  constexpr ShapeRule kRule = {.name = "1f1b", .chunks = 1};
  TESSERA_RETURN_IF_ERROR(CheckShape(kRule, shape));
  TESSERA_ASSIGN_OR_RETURN(
      Schedule schedule,
      EmptySchedule(kRule.name, StageMap::Linear(shape.ranks),
                    shape.microbatches));
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    schedule.ranks.push_back(RankActions(rank, shape));
  }
  return schedule;
}

}  // namespace tessera::pipeline
