#include "pipeline/generate/zb_h.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"

namespace tessera::pipeline {
namespace {

// Forwards before the first backward-input, and micro-batches that wait for
// their backward-weight while there are forwards left to do.
struct Depth {
  int64_t warm_up;
  int64_t lag;
};

std::vector<Action> RankActions(int64_t rank, Depth depth, int64_t m) {
  ActionList list(m);
  StageTurns stage(list, rank);
  while (stage.forwards() < std::min(depth.warm_up, m)) stage.Forward();
  while (stage.backwards() < m) {
    stage.BackwardInput();
    if (stage.backwards() - stage.finished() > depth.lag) {
      stage.BackwardWeight();
    }
    if (stage.forwards() < m) stage.Forward();
  }
  while (stage.finished() < m) stage.BackwardWeight();
  return std::move(list).Take();
}

absl::StatusOr<Schedule> Generate(std::string_view name, int64_t step,
                                  const PipelineShape& shape) {
  TESSERA_RETURN_IF_ERROR(CheckShape({.name = name, .chunks = 1}, shape));
  const auto [p, v, m] = shape;
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(name, StageMap::Linear(p), m));
  for (int64_t rank = 0; rank < p; ++rank) {
    const Depth depth = {step * (p - 1 - rank) + 1, step * rank};
    schedule.ranks.push_back(RankActions(rank, depth, m));
  }
  return schedule;
}

}  // namespace

absl::StatusOr<Schedule> GenerateZbH1(const PipelineShape& shape) {
  return Generate("zb_h1", 1, shape);
}

absl::StatusOr<Schedule> GenerateZbH2(const PipelineShape& shape) {
  return Generate("zb_h2", 2, shape);
}

}  // namespace tessera::pipeline
