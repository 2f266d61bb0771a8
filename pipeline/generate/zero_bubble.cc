#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"
#include "pipeline/generate/generators.h"

namespace tessera::pipeline {

namespace {

// Forwards before the first backward-input, and micro-batches that wait for
// their backward-weight while there are forwards left to do.
struct Depth {
  int64_t warm_up;
  int64_t lag;
};

std::vector<Action> HandcraftedActions(int64_t rank, Depth depth, int64_t m) {
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

absl::StatusOr<Schedule> GenerateHandcrafted(std::string_view name,
                                             int64_t step,
                                             const PipelineShape& shape) {
  TESSERA_RETURN_IF_ERROR(CheckShape({.name = name, .chunks = 1}, shape));
  const auto [p, v, m] = shape;
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           EmptySchedule(name, StageMap::Linear(p), m));
  for (int64_t rank = 0; rank < p; ++rank) {
    const Depth depth = {step * (p - 1 - rank) + 1, step * rank};
    schedule.ranks.push_back(HandcraftedActions(rank, depth, m));
  }
  return schedule;
}

// The order of a rank whose first stage is on the V's way down and whose second
// stage is on its way up. The phases are those of figure 4 of the paper.
class ZbVPattern {
 public:
  ZbVPattern(int64_t rank, int64_t ranks, int64_t microbatches,
             ActionList& list)
      : rank_(rank),
        ranks_(ranks),
        microbatches_(microbatches),
        down_(list, rank),
        up_(list, 2 * ranks - 1 - rank) {}

  // Forwards of the down chunk. After the first micro-batch returns from the
  // turn, also forwards, and then backwards, of the up chunk.
  void WarmUp() {
    for (int64_t i = 0; i < 2 * (ranks_ - rank_) - 1; ++i) down_.Forward();
    for (int64_t i = 0; i < rank_; ++i) {
      up_.Forward();
      down_.Forward();
    }
    for (int64_t i = 0; i < ranks_ - rank_; ++i) {
      up_.Forward();
      Finish(up_);
    }
  }

  // Both chunks, forward and backward.
  void Steady() {
    while (up_.forwards() < microbatches_) {
      if (down_.forwards() < microbatches_) down_.Forward();
      Finish(down_);
      up_.Forward();
      Finish(up_);
    }
  }

  // Backward-inputs as they arrive, then the remaining backward-weights.
  void CoolDown() {
    for (int64_t i = 0; i < rank_; ++i) {
      down_.BackwardInput();
      up_.BackwardInput();
    }
    for (int64_t i = 0; i < ranks_ - rank_; ++i) {
      down_.BackwardInput();
      down_.BackwardWeight();
    }
    while (up_.finished() < microbatches_) up_.BackwardWeight();
    while (down_.finished() < microbatches_) down_.BackwardWeight();
  }

 private:
  static void Finish(StageTurns& stage) {
    stage.BackwardInput();
    stage.BackwardWeight();
  }

  int64_t rank_;
  int64_t ranks_;
  int64_t microbatches_;
  StageTurns down_;
  StageTurns up_;
};

}  // namespace

absl::StatusOr<Schedule> GenerateZbH1(const PipelineShape& shape) {
  return GenerateHandcrafted("zb_h1", 1, shape);
}

absl::StatusOr<Schedule> GenerateZbH2(const PipelineShape& shape) {
  return GenerateHandcrafted("zb_h2", 2, shape);
}

absl::StatusOr<Schedule> GenerateZbV(const PipelineShape& shape) {
  const int64_t p = shape.ranks;
  const ShapeRule rule = {.name = "zb_v",
                          .chunks = 2,
                          .least_microbatches = 2 * RanksOrLimit(shape) - 1};
  TESSERA_RETURN_IF_ERROR(CheckShape(rule, shape));
  TESSERA_ASSIGN_OR_RETURN(
      Schedule schedule,
      EmptySchedule(rule.name, StageMap::Zigzag(p, 2), shape.microbatches));
  for (int64_t rank = 0; rank < p; ++rank) {
    ActionList list(shape.microbatches);
    ZbVPattern pattern(rank, p, rule.PatternMicroBatches(shape.microbatches),
                       list);
    pattern.WarmUp();
    pattern.Steady();
    pattern.CoolDown();
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

}  // namespace tessera::pipeline
