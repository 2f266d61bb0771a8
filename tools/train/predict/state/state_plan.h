// StatePlan: how a rank's model state is laid out, gathered and reduced, as
// ShardedModel and zero3::ShardedState do it.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const StatePlan state,
//       StatePlan::Create(plan, place, {.optimizer = StateHome::kHost}));
//   state.memory().Estimate(state.data_rank());
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_STATE_STATE_PLAN_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_STATE_STATE_PLAN_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/train/predict/rank_place.h"
#include "topology/rank.h"
#include "zero3/estimate/estimate_memory.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/use/reuse_plan.h"
#include "zero3/state/gradients/reduce_buckets.h"
#include "zero3/state/sharded_state_options.h"

namespace tessera::train {

enum class StateHome {
  kMemory,  // The rank's own.
  kHost,    // A tier in host memory, used in place where not compressed.
  kFiles,
};

struct StateHomes {
  StateHome parameters = StateHome::kMemory;  // Stage 3 only.
  StateHome gradients = StateHome::kMemory;   // Stages 2 and 3 only.
  StateHome optimizer = StateHome::kMemory;
  // What is in tiers is encoded: it is reached through buffers, and may take
  // less than is predicted.
  bool compressed = false;

  bool has(StateHome home) const {
    return parameters == home || gradients == home || optimizer == home;
  }
};

class StatePlan {
 public:
  // InvalidArgument as ShardedState::Create; Unimplemented for options that a
  // training run does not set: another optimizer than AdamW, two tiers, gathers
  // more than one window ahead, budgets.
  static absl::StatusOr<StatePlan> Create(const RunPlan& plan,
                                          const RankPlace& place,
                                          const StateHomes& homes);

  const zero3::ShardedStateOptions& options() const { return options_; }
  const StateHomes& homes() const { return homes_; }
  const zero3::MemoryModel& memory() const { return memory_; }
  const zero3::StateLayout& layout() const { return memory_.layout(); }
  const zero3::ModelParameters& model() const { return layout().model(); }
  const zero3::ReduceBuckets& buckets() const { return buckets_; }
  int64_t data_ranks() const { return data_ranks_; }
  topology::Rank data_rank() const { return data_rank_; }

  // Stage 3: which parameters are gathered when, from the second step on; uses
  // that change nothing are left out.
  const zero3::ReusePlan& gathers() const { return memory_.gathers(); }

  // Whether all ranks keep it whole.
  bool IsWhole(const zero3::Parameter& parameter) const;
  int64_t GatheredBytes(const zero3::Parameter& parameter) const {
    return layout().GatheredElements(parameter.id) *
           SizeInBytes(parameter.dtype());
  }

 private:
  explicit StatePlan(zero3::MemoryModel memory) : memory_(std::move(memory)) {}

  zero3::ShardedStateOptions options_;
  StateHomes homes_;
  zero3::MemoryModel memory_;
  zero3::ReduceBuckets buckets_;
  int64_t data_ranks_ = 1;
  topology::Rank data_rank_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_STATE_STATE_PLAN_H_
