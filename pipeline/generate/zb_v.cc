#include "pipeline/generate/zb_v.h"

#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"

namespace tessera::pipeline {
namespace {

// The turns of a rank whose first stage is on the V's way down, and whose other
// one is on its way up. Its phases are those of figure 4 of the paper.
class RankPattern {
 public:
  RankPattern(int64_t rank, int64_t ranks, int64_t microbatches,
              ActionList& list)
      : rank_(rank),
        ranks_(ranks),
        microbatches_(microbatches),
        down_(list, rank),
        up_(list, 2 * ranks - 1 - rank) {}

  // Forwards alone, until the first micro-batch comes back from the turn; then
  // it and others go back as they arrive.
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

  // Backward-inputs as they arrive, then what weights are left.
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
    RankPattern pattern(rank, p, rule.PatternMicroBatches(shape.microbatches),
                        list);
    pattern.WarmUp();
    pattern.Steady();
    pattern.CoolDown();
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

}  // namespace tessera::pipeline
