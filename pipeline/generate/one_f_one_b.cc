#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"
#include "pipeline/generate/generators.h"

namespace tessera::pipeline {

namespace {

std::vector<Action> OneFOneBActions(int64_t rank, const PipelineShape& shape) {
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

// The turns of a rank's chunks when p divides the micro-batches.
class Turns {
 public:
  Turns(int64_t rank, const PipelineShape& shape, ActionList& list)
      : rank_(rank), ranks_(shape.ranks), chunks_(shape.chunks), list_(list) {}

  void Forward() {
    Add(ActionKind::kForward, ChunkAt(forwards_), MicroBatchAt(forwards_));
    ++forwards_;
  }
  void Backward() {
    Add(ActionKind::kBackward, chunks_ - 1 - ChunkAt(backwards_),
        MicroBatchAt(backwards_));
    ++backwards_;
  }
  int64_t forwards() const { return forwards_; }
  int64_t backwards() const { return backwards_; }

 private:
  int64_t ChunkAt(int64_t turn) const { return turn / ranks_ % chunks_; }
  int64_t MicroBatchAt(int64_t turn) const {
    return turn / (ranks_ * chunks_) * ranks_ + turn % ranks_;
  }
  void Add(ActionKind kind, int64_t chunk, int64_t microbatch) {
    list_.Add(kind, chunk * ranks_ + rank_, microbatch);
  }

  int64_t rank_;
  int64_t ranks_;
  int64_t chunks_;
  ActionList& list_;
  int64_t forwards_ = 0;
  int64_t backwards_ = 0;
};

int64_t WarmUp(int64_t rank, const PipelineShape& shape) {
  const int64_t to_last = shape.ranks - 1 - rank;
  if (shape.chunks == 1) return to_last;
  return 2 * to_last + (shape.chunks - 1) * shape.ranks;
}

std::vector<Action> InterleavedActions(int64_t rank, const PipelineShape& shape,
                                       int64_t pattern_microbatches) {
  ActionList list(shape.microbatches);
  Turns turns(rank, shape, list);
  const int64_t all = shape.chunks * pattern_microbatches;
  const int64_t warm_up = std::min(WarmUp(rank, shape), all);
  while (turns.forwards() < warm_up) turns.Forward();
  while (turns.forwards() < all) {
    turns.Forward();
    turns.Backward();
  }
  while (turns.backwards() < all) turns.Backward();
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
    schedule.ranks.push_back(OneFOneBActions(rank, shape));
  }
  return schedule;
}

absl::StatusOr<Schedule> GenerateInterleavedOneFOneB(
    const PipelineShape& shape) {
  const ShapeRule rule = {.name = "interleaved_1f1b",
                          .multiple_of = RanksOrLimit(shape)};
  TESSERA_RETURN_IF_ERROR(CheckShape(rule, shape));
  TESSERA_ASSIGN_OR_RETURN(
      Schedule schedule,
      EmptySchedule(rule.name, StageMap::Loop(shape.ranks, shape.chunks),
                    shape.microbatches));
  const int64_t pattern_microbatches =
      rule.PatternMicroBatches(shape.microbatches);
  for (int64_t rank = 0; rank < shape.ranks; ++rank) {
    schedule.ranks.push_back(
        InterleavedActions(rank, shape, pattern_microbatches));
  }
  return schedule;
}

}  // namespace tessera::pipeline
