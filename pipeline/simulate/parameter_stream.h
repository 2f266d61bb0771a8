// ParameterStream: the gathers and reductions of a rank's parameters, one at a
// time, beside its computations.
#ifndef TESSERA_PIPELINE_SIMULATE_PARAMETER_STREAM_H_
#define TESSERA_PIPELINE_SIMULATE_PARAMETER_STREAM_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/memory_meter.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

class ParameterStream {
 public:
  // Does UNSHARD, RESHARD or REDUCE_GRAD, which the rank's list has reached at
  // `time`.
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

  // A computation that begins at `time` adds to the stage's gradients.
  void AddGradient(int32_t stage, const StageCosts& costs, double time,
                   MemoryMeter& memory) {
    if (costs.unreduced_bytes == 0 || !unreduced_.insert(stage).second) return;
    memory.Change(time, costs.unreduced_bytes);
  }

  // When the stage's parameters are there; 0 where nobody gathers them.
  double GatheredAt(int32_t stage) const {
    if (gathered_at_.empty()) return 0;
    const auto gathered = gathered_at_.find(stage);
    return gathered == gathered_at_.end() ? 0 : gathered->second;
  }

  // When all is done.
  double free_at() const { return free_at_; }

 private:
  // Not before it has been gathered, though nobody may have waited for that.
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
  absl::flat_hash_set<int32_t> unreduced_;  // Stages with whole gradients.
  double free_at_ = 0;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_PARAMETER_STREAM_H_
