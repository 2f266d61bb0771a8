// PipelineShape, the input of every generator, and what generators share: rules
// for valid shapes (ShapeRule, CheckShape), and lists of actions that skip
// micro-batches that do not exist (ActionList, StageTurns).
//
//   TESSERA_RETURN_IF_ERROR(CheckShape({.name = "zb_v", .chunks = 2}, shape));
//   ActionList list(shape.microbatches);
//   StageTurns stage(list, /*stage=*/0);
//   stage.Forward();                             // 0F0
//   stage.Forward();                             // 0F1
//   stage.BackwardInput();                       // 0I0
//   schedule.ranks.push_back(std::move(list).Take());
#ifndef TESSERA_PIPELINE_GENERATE_DRAFT_H_
#define TESSERA_PIPELINE_GENERATE_DRAFT_H_

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The size of a pipeline: its ranks, chunks and micro-batches.
//
//   GenerateInterleavedOneFOneB({.ranks = 4, .chunks = 2, .microbatches = 8});
struct PipelineShape {
  int64_t ranks = 1;
  // The number of stages of a rank that one micro-batch passes: 2 for the
  // V-shaped methods, 1 for methods without chunks (including DualPipe, whose
  // ranks hold one stage for each direction).
  int64_t chunks = 1;
  int64_t microbatches = 1;

  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};

// The requirements of a method on the shape.
//
// Omitting actions keeps a schedule valid: actions of different micro-batches
// depend on each other only through the order within a rank, and any subset of
// an acyclic order is acyclic. So a method that needs a multiple of p
// micro-batches, or at least 2p, is generated for that number and serves all
// smaller numbers, with no more live activations.
struct ShapeRule {
  std::string_view name;
  // The required number of chunks; 0: any.
  int64_t chunks = 0;
  bool even_ranks = false;
  // The method's pattern needs at least this many micro-batches, and a multiple
  // of `multiple_of`. A shape's number is rounded up, and the extra
  // micro-batches are omitted.
  int64_t least_microbatches = 1;
  int64_t multiple_of = 1;

  // The number of micro-batches of the pattern. `microbatches` must be at most
  // kMostActions.
  int64_t PatternMicroBatches(int64_t microbatches) const;
};

// The largest number of actions of a schedule before any are omitted; also the
// limit of ReadCsv.
inline constexpr int64_t kMostActions = int64_t{1} << 24;

// The number of ranks, clamped to [1, kMostActions], for rules that depend on
// it before the shape has been checked.
inline int64_t RanksOrLimit(const PipelineShape& shape) {
  return std::clamp<int64_t>(shape.ranks, 1, kMostActions);
}

// InvalidArgument if a count is less than 1, breaks the rule, or results in
// more than kMostActions actions. The message has the given counts and the
// nearest valid ones.
absl::Status CheckShape(const ShapeRule& rule, const PipelineShape& shape);

// A schedule without actions. Propagates the error of `map`.
absl::StatusOr<Schedule> EmptySchedule(std::string_view name,
                                       absl::StatusOr<StageMap> map,
                                       int64_t microbatches);

// The actions of a rank, in order.
class ActionList {
 public:
  // Omits actions of micro-batches from `microbatches` on.
  explicit ActionList(int64_t microbatches) : microbatches_(microbatches) {}

  void Add(ActionKind kind, int64_t stage, int64_t microbatch) {
    if (microbatch >= microbatches_) return;
    actions_.push_back(
        {kind, static_cast<int32_t>(stage), static_cast<int32_t>(microbatch)});
  }

  // If exactly two actions have been added since the size was `begin`, marks
  // them as a pair that runs together.
  void PairFrom(size_t begin) {
    if (actions_.size() == begin + 2) actions_[begin].with_next = true;
  }

  size_t size() const { return actions_.size(); }
  std::vector<Action> Take() && { return std::move(actions_); }

 private:
  int64_t microbatches_;
  std::vector<Action> actions_;
};

// A stage of a rank whose micro-batches are processed in order, separately for
// each kind of action. The list must outlive it.
class StageTurns {
 public:
  // Micro-batches are numbered from `first`; those from `end` on are omitted.
  StageTurns(ActionList& list, int64_t stage, int64_t first = 0,
             int64_t end = kMostIndex)
      : list_(&list), stage_(stage), first_(first), end_(end) {}

  void Forward() { Add(ActionKind::kForward, forwards_++); }
  void BackwardInput() { Add(ActionKind::kBackwardInput, backwards_++); }
  void BackwardWeight() { Add(ActionKind::kBackwardWeight, finished_++); }
  // Precondition: no micro-batch waits for its BackwardWeight.
  void Backward() {
    Add(ActionKind::kBackward, backwards_++);
    ++finished_;
  }

  // The number of micro-batches so far that had their F; their B or I; their B
  // or W.
  int64_t forwards() const { return forwards_; }
  int64_t backwards() const { return backwards_; }
  int64_t finished() const { return finished_; }

 private:
  void Add(ActionKind kind, int64_t turn) {
    if (first_ + turn < end_) list_->Add(kind, stage_, first_ + turn);
  }

  ActionList* list_;
  int64_t stage_;
  int64_t first_;
  int64_t end_;
  int64_t forwards_ = 0;
  int64_t backwards_ = 0;
  int64_t finished_ = 0;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_DRAFT_H_
