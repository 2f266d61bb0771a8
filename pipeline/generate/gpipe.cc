#include "pipeline/generate/gpipe.h"

#include <algorithm>
#include <utility>
#include <vector>

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

absl::StatusOr<Schedule> GenerateLoopedBfs(const PipelineShape& shape) {
  constexpr ShapeRule kRule = {.name = "looped_bfs"};
  TESSERA_RETURN_IF_ERROR(CheckShape(kRule, shape));
  const auto [p, v, m] = shape;
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(kRule.name, StageMap::Loop(p, v), m));
  for (int64_t rank = 0; rank < p; ++rank) {
    ActionList list(m);
    for (int64_t chunk = 0; chunk < v; ++chunk) {
      for (int64_t i = 0; i < m; ++i) {
        list.Add(ActionKind::kForward, chunk * p + rank, i);
      }
    }
    for (int64_t chunk = v - 1; chunk >= 0; --chunk) {
      for (int64_t i = 0; i < m; ++i) {
        list.Add(ActionKind::kBackward, chunk * p + rank, i);
      }
    }
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

namespace {

struct Turn {
  int64_t chunk;
  int64_t microbatch;
};

std::vector<Turn> DepthFirst(const PipelineShape& shape) {
  const auto [p, v, m] = shape;
  std::vector<Turn> turns;
  for (int64_t first = 0; first < m; first += p) {
    const int64_t end = std::min(first + p, m);
    for (int64_t chunk = 0; chunk < v; ++chunk) {
      for (int64_t i = first; i < end; ++i) turns.push_back({chunk, i});
    }
  }
  return turns;
}

}  // namespace

absl::StatusOr<Schedule> GenerateRoundRobin(const PipelineShape& shape) {
  constexpr ShapeRule kRule = {.name = "round_robin"};
  TESSERA_RETURN_IF_ERROR(CheckShape(kRule, shape));
  const auto [p, v, m] = shape;
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(kRule.name, StageMap::Loop(p, v), m));
  const std::vector<Turn> turns = DepthFirst(shape);
  for (int64_t rank = 0; rank < p; ++rank) {
    ActionList list(m);
    for (const auto [chunk, i] : turns) {
      list.Add(ActionKind::kForward, chunk * p + rank, i);
    }
    for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
      list.Add(ActionKind::kBackward, turn->chunk * p + rank, turn->microbatch);
    }
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

}  // namespace tessera::pipeline
