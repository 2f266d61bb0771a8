#include "pipeline/generate/eight_steps.h"

#include <deque>

namespace tessera::pipeline {
namespace {

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
    // Step 4, until `near` has no more forwards; where micro-batches turn the
    // first pair is not one, lest the ranks before it wait.
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
    // Step 6, the later half of whose backwards are split.
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

}  // namespace

void DualPipeSteps(const DualPipeRank& rank, ActionList& list, StageTurns& near,
                   StageTurns& far) {
  Steps steps(rank, list, near, far);
  steps.WarmUp();
  steps.Steady();
  steps.CoolDown();
}

}  // namespace tessera::pipeline
