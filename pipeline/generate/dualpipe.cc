#include <algorithm>
#include <deque>
#include <utility>

#include "base/status_macros.h"
#include "pipeline/generate/draft.h"
#include "pipeline/generate/generators.h"

namespace tessera::pipeline {

namespace {

struct DualPipeRank {
  // Distance from the rank at which micro-batches of `near` enter, and its
  // maximum, on the rank where they turn or meet the other direction.
  int64_t depth = 0;
  int64_t most_depth = 0;
  // Micro-batches in each of the two stages; at least 2 (most_depth + 1).
  int64_t turns = 0;
};

// The eight steps of DualPipe and DualPipeV on a rank with two stages: `near`,
// whose micro-batches have passed `depth` ranks, and `far`.
class Steps {
 public:
  Steps(const DualPipeRank& rank, ActionList& list, StageTurns& near,
        StageTurns& far)
      : depth_(rank.depth),
        above_(rank.most_depth - rank.depth),
        turns_(rank.turns),
        list_(list),
        near_(near),
        far_(far) {}

  void WarmUp() {
    for (int64_t i = 0; i < 2 * above_; ++i) near_.Forward();  // Step 1.
    for (int64_t i = 0; i <= depth_; ++i) {                    // Step 2.
      near_.Forward();
      far_.Forward();
    }
    for (int64_t i = 0; i < above_; ++i) {  // Step 3.
      SplitBackward(far_);
      FinishOldest();
      far_.Forward();
    }
  }

  void Steady() {
    // Step 4, until `near` has no more forwards. On the rank where
    // micro-batches turn the first pair is not fused, so that earlier ranks do
    // not wait.
    for (bool first = true; near_.forwards() < turns_; first = false) {
      if (first && above_ == 0) {
        near_.Forward();
        far_.Backward();
      } else {
        Pair(near_, far_);
      }
      Pair(far_, near_);
    }
    for (int64_t i = 0; i < above_; ++i) {  // Step 5.
      far_.Backward();
      Pair(far_, near_);
    }
  }

  void CoolDown() {
    // Step 6; the later half of its backwards is split.
    for (int64_t i = 0; i < 2 * (depth_ + 1); ++i) {
      StageTurns& stage = i % 2 == 0 ? far_ : near_;
      if (i < depth_ + 1) {
        stage.Backward();
      } else {
        SplitBackward(stage);
      }
    }
    for (int64_t i = 0; i < above_; ++i) {  // Step 7.
      FinishOldest();
      SplitBackward(near_);
    }
    while (!waiting_.empty()) FinishOldest();  // Step 8.
  }

 private:
  void Pair(StageTurns& forward, StageTurns& backward) {
    const size_t begin = list_.size();
    forward.Forward();
    backward.Backward();
    list_.PairFrom(begin);
  }
  void SplitBackward(StageTurns& stage) {
    stage.BackwardInput();
    waiting_.push_back(&stage);
  }
  void FinishOldest() {
    waiting_.front()->BackwardWeight();
    waiting_.pop_front();
  }

  int64_t depth_;
  int64_t above_;
  int64_t turns_;
  ActionList& list_;
  StageTurns& near_;
  StageTurns& far_;
  std::deque<StageTurns*> waiting_;
};

void DualPipeSteps(const DualPipeRank& rank, ActionList& list, StageTurns& near,
                   StageTurns& far) {
  Steps steps(rank, list, near, far);
  steps.WarmUp();
  steps.Steady();
  steps.CoolDown();
}

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
