// LossGuard: judges each step by its numbers, whether the run can continue, and
// whether it should return to an earlier checkpoint.
//
//   LossGuard guard(run);
//   TESSERA_ASSIGN_OR_RETURN(const StepVerdict verdict,
//                            guard.Judge(losses_before, record, rank));
//   if (!verdict.rollback.empty()) ...
//   if (!verdict.non_finite.empty()) return Error(verdict.non_finite);
#ifndef TESSERA_TOOLS_TRAIN_LOOP_LOSS_GUARD_H_
#define TESSERA_TOOLS_TRAIN_LOOP_LOSS_GUARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/loop/run_context.h"
#include "tools/train/step/run_progress.h"
#include "tools/train/step/train_rank.h"

namespace tessera::train {

// The same on every rank. Messages count steps from 0, like the metrics.
struct StepVerdict {
  // Why the run cannot continue after the step; empty if it can.
  std::string non_finite = {};
  // With --spike_factor, why it should return to a checkpoint; empty if not.
  std::string rollback = {};
  // The number of steps before losses rose.
  int64_t steps_before_rise = 0;
  // The median of the losses before it; NaN if there are too few.
  double usual = 0;
};

class LossGuard {
 public:
  // `run` must outlive this.
  explicit LossGuard(const RunContext& run) : run_(run) {}

  // A step with infinite or NaN gradients has changed no weight. Up to
  // --max_skipped_steps consecutive such steps are skipped; with dynamic loss
  // scaling any number, each of which lowers the scale. `losses` are the losses
  // before the step. A collective.
  absl::StatusOr<StepVerdict> Judge(const std::vector<double>& losses,
                                    const StepRecord& record,
                                    const TrainRank& rank);

  // The run continues from an earlier step.
  void Restart() { skipped_in_a_row_ = 0; }

 private:
  absl::StatusOr<std::string> NonFinite(const StepRecord& record,
                                        const TrainRank& rank);
  void FindRollback(const std::vector<double>& losses, const StepRecord& record,
                    StepVerdict& verdict) const;

  const RunContext& run_;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_LOSS_GUARD_H_
