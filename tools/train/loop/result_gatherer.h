// ResultGatherer: makes a RunResult of what the ranks measure.
//
//   ResultGatherer results(world);
//   results.Begin(first_step);
//   TESSERA_ASSIGN_OR_RETURN(const StepResult step,
//                            results.AddStep(record, account, tokens));
//   results.AddRank(rank, tiers);
//   return results.Result(before, peak, checkpoint);
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RESULT_GATHERER_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RESULT_GATHERER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/train/loop/offload_tiers.h"
#include "tools/train/loop/run_result.h"
#include "tools/train/loop/step_record.h"
#include "tools/train/loop/train_rank.h"
#include "tools/train/report/step_activity.h"

namespace tessera::train {

class ResultGatherer {
 public:
  explicit ResultGatherer(collectives::Communicator& world)
      : world_(world), ranks_(static_cast<size_t>(world.size())) {}

  // The first step begins now.
  void Begin(int64_t first_step);

  // A collective, as Result; the same on every rank. `tokens` are those of the
  // step, of all ranks.
  absl::StatusOr<StepResult> AddStep(const StepRecord& record,
                                     const StepAccount& account,
                                     int64_t tokens);

  // What a rank's state and tiers held and moved, before they go. A run that
  // changes its strategy has several, one after the other.
  void AddRank(TrainRank& rank, const OffloadTiers& tiers);

  // Resident bytes of this process before the run's own state was made, and the
  // most in steps if that is more than the system's own peak.
  absl::StatusOr<RunResult> Result(int64_t resident_before, int64_t peak,
                                   std::string checkpoint);

 private:
  // What ranks tell each other of a step: doubles hold it exactly.
  struct RankStep {
    double resident = 0;
    double seconds = 0;  // Since the step before.
    TimeShares shares = {};
  };

  void Count(const std::vector<RankStep>& ranks);

  collectives::Communicator& world_;
  RunResult result_;
  // Seconds of steps that count, and on what each rank spent them.
  double counted_seconds_ = 0;
  int64_t counted_tokens_ = 0;
  int64_t last_end_ns_ = 0;
  std::vector<TimeShares> ranks_;
  RankMemory memory_;  // Peaks by purpose on this rank.
  OffloadTraffic traffic_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RESULT_GATHERER_H_
