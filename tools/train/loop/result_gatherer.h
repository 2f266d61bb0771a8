// Collects the measurements of all ranks into a RunResult.
//
//   ResultGatherer results(world);
//   results.Begin(first_step, mesh);
//   TESSERA_ASSIGN_OR_RETURN(const StepMetrics step,
//                            results.AddStep(record, account));
//   results.AddRank(rank, tiers);
//   return results.Result(before, peak, checkpoint);
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RESULT_GATHERER_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RESULT_GATHERER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/train/loop/offload_tiers.h"
#include "tools/train/loop/preemption.h"
#include "tools/train/predict/message_table.h"
#include "tools/train/report/run_result.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/straggler.h"
#include "tools/train/step/train_rank.h"
#include "topology/config/mesh_sizes.h"

namespace tessera::train {

class ResultGatherer {
 public:
  explicit ResultGatherer(collectives::Communicator& world)
      : world_(world), ranks_(static_cast<size_t>(world.size())) {}

  // Call it when the first step begins. `mesh` is that of the world.
  void Begin(int64_t first_step, const topology::MeshSizes& mesh);

  // A collective. Returns the same on every rank. `cause` is why this rank
  // wants the run to stop after the step.
  absl::StatusOr<StepMetrics> AddStep(const StepRecord& record,
                                      const StepAccount& account,
                                      StopCause cause);

  // The largest cause of any rank after the last step.
  StopCause stop() const { return stop_; }

  // Drops the steps that a rollback makes the run repeat, and the time since
  // the last step. The totals still include these steps.
  void GoBack(const Rollback& rollback);

  // Excludes the last `nanos` from the time of the current step.
  void LeaveOut(int64_t nanos) { last_end_ns_ += nanos; }

  // Adds the peaks and traffic of a rank's state and tiers. Call it before they
  // are destroyed, also when the run changes its strategy.
  void AddRank(TrainRank& rank, const OffloadTiers& tiers);

  // A collective. `resident_before` is the resident bytes of this process
  // before the run allocated its state, `peak` a lower bound of the process's
  // peak, `messages` this rank's.
  absl::StatusOr<RunResult> Result(int64_t resident_before, int64_t peak,
                                   std::string checkpoint,
                                   const MeasuredMessages& messages);

 private:
  // Exchanged by the ranks after a step; doubles represent it exactly.
  struct RankStep {
    double resident = 0;
    double seconds = 0;  // Since the previous step.
    double stop = 0;     // The StopCause.
    TimeShares shares = {};
  };

  collectives::Communicator& world_;
  RunResult result_;
  StopCause stop_ = StopCause::kNone;
  // Totals over the counted steps. `ranks_` holds each rank's seconds by
  // activity.
  double counted_seconds_ = 0;
  int64_t counted_tokens_ = 0;
  int64_t last_end_ns_ = 0;
  std::vector<TimeShares> ranks_;
  std::optional<StragglerWatch> stragglers_;  // After Begin.
  RankMemory memory_;                         // Peaks by purpose on this rank.
  OffloadTraffic traffic_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RESULT_GATHERER_H_
