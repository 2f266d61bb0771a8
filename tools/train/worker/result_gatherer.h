// ResultGatherer: makes a RunResult of what the ranks measure.
//
//   ResultGatherer results(world);
//   results.Begin(first_step);
//   TESSERA_ASSIGN_OR_RETURN(const StepResult step,
//                            results.AddStep(record, account, tokens));
//   return results.Result(rank, tiers, before, checkpoint);
#ifndef TESSERA_TOOLS_TRAIN_WORKER_RESULT_GATHERER_H_
#define TESSERA_TOOLS_TRAIN_WORKER_RESULT_GATHERER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/train/run/step_record.h"
#include "tools/train/run/train_rank.h"
#include "tools/train/worker/measure/step_activity.h"
#include "tools/train/worker/memory/offload_tiers.h"
#include "tools/train/worker/run_result.h"

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

  absl::StatusOr<RunResult> Result(TrainRank& rank, const OffloadTiers& tiers,
                                   int64_t resident_before,
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
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WORKER_RESULT_GATHERER_H_
