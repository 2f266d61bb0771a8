// The parts of a simulated rank other than computations and messages: its
// memory (MemoryMeter), the gathers and reductions of its parameters
// (ParameterStream), and the optimizer's step (StepOptimizer).
#ifndef TESSERA_PIPELINE_SIMULATE_RANK_MEMORY_H_
#define TESSERA_PIPELINE_SIMULATE_RANK_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// The bytes that a rank holds over time.
//
//   MemoryMeter meter(/*keep_curve=*/true);
//   meter.Change(0.5, +100);
//   meter.Finish(line);       // line.memory, line.peak_bytes
class MemoryMeter {
 public:
  // If the curve is kept, changes must be in order of time.
  explicit MemoryMeter(bool keep_curve) : keep_curve_(keep_curve) {}

  void Reserve(size_t changes) {
    if (keep_curve_) changes_.reserve(changes);
  }

  // From `time` on the rank holds this many more (or fewer) bytes. Changes at
  // the same time apply in call order.
  void Change(double time, int64_t bytes) {
    if (bytes == 0) return;
    if (keep_curve_) {
      sorted_ = sorted_ && (changes_.empty() || changes_.back().time <= time);
      changes_.push_back({time, bytes});
    } else {
      Hold(bytes);
    }
  }

  // Fills in `memory` and `peak_bytes`.
  void Finish(RankTimeline& line) {
    if (!sorted_) {
      std::stable_sort(
          changes_.begin(), changes_.end(),
          [](const auto& a, const auto& b) { return a.time < b.time; });
    }
    for (MemoryChange& change : changes_) {
      Hold(change.bytes);
      change.bytes = held_;
    }
    line.memory = std::move(changes_);
    line.peak_bytes = peak_;
  }

 private:
  void Hold(int64_t bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }

  bool keep_curve_;
  bool sorted_ = true;
  std::vector<MemoryChange> changes_;  // Deltas; Finish makes them totals.
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

// The gathers and reductions of a rank's parameters, one at a time, concurrent
// with its computations.
class ParameterStream {
 public:
  // Executes UNSHARD, RESHARD or REDUCE_GRAD, which the rank's list has reached
  // at `time`.
  TimeSpan Do(const Action& action, const StageCosts& costs, double time,
              MemoryMeter& memory) {
    if (action.kind == ActionKind::kReshard) {
      return Reshard(action.stage, costs, time, memory);
    }
    const double begin = std::max(time, free_at_);
    free_at_ = begin + costs.TimeOf(action.kind);
    if (action.kind == ActionKind::kUnshard &&
        gathered_at_.insert_or_assign(action.stage, free_at_).second) {
      memory.Change(begin, costs.unsharded_bytes);
    }
    if (action.kind == ActionKind::kReduceGradient &&
        unreduced_.erase(action.stage) > 0) {
      memory.Change(free_at_, -costs.unreduced_bytes);
    }
    return {begin, free_at_};
  }

  // Records that a computation which begins at `time` adds to the stage's
  // gradients.
  void AddGradient(int32_t stage, const StageCosts& costs, double time,
                   MemoryMeter& memory) {
    if (costs.unreduced_bytes == 0 || !unreduced_.insert(stage).second) return;
    memory.Change(time, costs.unreduced_bytes);
  }

  // The time at which the stage's parameters are gathered; 0 if no UNSHARD
  // gathers them.
  double GatheredAt(int32_t stage) const {
    if (gathered_at_.empty()) return 0;
    const auto gathered = gathered_at_.find(stage);
    return gathered == gathered_at_.end() ? 0 : gathered->second;
  }

  // When all gathers and reductions are done.
  double free_at() const { return free_at_; }

 private:
  // Starts after the gather has ended, even if no computation waited for it.
  TimeSpan Reshard(int32_t stage, const StageCosts& costs, double time,
                   MemoryMeter& memory) {
    const auto gathered = gathered_at_.find(stage);
    if (gathered == gathered_at_.end()) return {time, time};
    const double end = std::max(time, gathered->second);
    gathered_at_.erase(gathered);
    memory.Change(end, -costs.unsharded_bytes);
    return {end, end};
  }

  absl::flat_hash_map<int32_t, double> gathered_at_;
  absl::flat_hash_set<int32_t> unreduced_;  // Stages with unreduced gradients.
  double free_at_ = 0;
};

// Appends the optimizer's step of each rank, for all stages that it holds. It
// begins at the rank's entry of `ready` or, with synchronisation, after all
// ranks are ready.
void StepOptimizer(const Schedule& schedule, const Costs& costs,
                   const std::vector<double>& ready, Timeline& timeline);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_RANK_MEMORY_H_
