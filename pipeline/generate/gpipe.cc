#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"
#include "pipeline/generate/generators.h"

namespace tessera::pipeline {

namespace {

// The schedule of this shape whose ranks have the actions that
// `add(shape, rank, list)` adds.
template <typename AddActions>
absl::StatusOr<Schedule> MakeLooped(const ShapeRule& rule,
                                    const PipelineShape& shape,
                                    AddActions add) {
  TESSERA_RETURN_IF_ERROR(CheckShape(rule, shape));
  const auto [p, v, m] = shape;
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(rule.name, StageMap::Loop(p, v), m));
  for (int64_t rank = 0; rank < p; ++rank) {
    ActionList list(m);
    add(shape, rank, list);
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

}  // namespace

absl::StatusOr<Schedule> GenerateSequential(const PipelineShape& shape) {
  const auto add = [](const PipelineShape& of, int64_t rank, ActionList& list) {
    for (int64_t i = 0; i < of.microbatches; ++i) {
      for (int64_t chunk = 0; chunk < of.chunks; ++chunk) {
        list.Add(ActionKind::kForward, chunk * of.ranks + rank, i);
      }
      for (int64_t chunk = of.chunks - 1; chunk >= 0; --chunk) {
        list.Add(ActionKind::kBackward, chunk * of.ranks + rank, i);
      }
    }
  };
  return MakeLooped({.name = "sequential"}, shape, add);
}

absl::StatusOr<Schedule> GenerateGpipe(const PipelineShape& shape) {
  const auto add = [](const PipelineShape& of, int64_t rank, ActionList& list) {
    const int64_t m = of.microbatches;
    for (int64_t i = 0; i < m; ++i) list.Add(ActionKind::kForward, rank, i);
    for (int64_t i = m - 1; i >= 0; --i) {
      list.Add(ActionKind::kBackward, rank, i);
    }
  };
  return MakeLooped({.name = "gpipe", .chunks = 1}, shape, add);
}

absl::StatusOr<Schedule> GenerateLoopedBfs(const PipelineShape& shape) {
  const auto add = [](const PipelineShape& of, int64_t rank, ActionList& list) {
    for (int64_t chunk = 0; chunk < of.chunks; ++chunk) {
      for (int64_t i = 0; i < of.microbatches; ++i) {
        list.Add(ActionKind::kForward, chunk * of.ranks + rank, i);
      }
    }
    for (int64_t chunk = of.chunks - 1; chunk >= 0; --chunk) {
      for (int64_t i = 0; i < of.microbatches; ++i) {
        list.Add(ActionKind::kBackward, chunk * of.ranks + rank, i);
      }
    }
  };
  return MakeLooped({.name = "looped_bfs"}, shape, add);
}

absl::StatusOr<Schedule> GenerateRoundRobin(const PipelineShape& shape) {
  const auto add = [](const PipelineShape& of, int64_t rank, ActionList& list) {
    // Stages and micro-batches, in rounds of as many micro-batches as ranks.
    std::vector<std::pair<int64_t, int64_t>> turns;
    for (int64_t first = 0; first < of.microbatches; first += of.ranks) {
      const int64_t end = std::min(first + of.ranks, of.microbatches);
      for (int64_t chunk = 0; chunk < of.chunks; ++chunk) {
        for (int64_t i = first; i < end; ++i) {
          turns.emplace_back(chunk * of.ranks + rank, i);
        }
      }
    }
    for (const auto& [stage, i] : turns) {
      list.Add(ActionKind::kForward, stage, i);
    }
    for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
      list.Add(ActionKind::kBackward, turn->first, turn->second);
    }
  };
  return MakeLooped({.name = "round_robin"}, shape, add);
}

}  // namespace tessera::pipeline
