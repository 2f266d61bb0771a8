// StepMeter: measures what a rank does in each step.
//
//   StepMeter meter(cpu_ops, collective_log, clock_offset);
//   ... TrainRank::Create(world, options, samples, meter.ops()) ...
//   meter.Begin();
//   rank->Step();
//   TESSERA_ASSIGN_OR_RETURN(const StepActivity activity, meter.End(*rank));
//
// Made and used by the rank's thread.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_STEP_METER_H_
#define TESSERA_TOOLS_TRAIN_REPORT_STEP_METER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/train/loop/collective_log.h"
#include "tools/train/loop/train_rank.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/report/timed_ops.h"

namespace tessera::train {

class StepMeter {
 public:
  // `ops` outlives this; `collectives` may be null. The offset is
  // ClockOffset's.
  StepMeter(tensor_parallel::Ops& ops,
            std::shared_ptr<CollectiveLog> collectives, int64_t clock_offset)
      : ops_(ops),
        tiers_(std::make_shared<TierLog>()),
        collectives_(std::move(collectives)),
        clock_offset_(clock_offset) {}

  // What the rank is to compute with, and what its tiers log to.
  tensor_parallel::Ops& ops() { return ops_; }
  const std::shared_ptr<TierLog>& tiers() const { return tiers_; }

  // Forgets what was before.
  void Begin();

  // Of the step that the rank has just taken. A collective of its pipeline.
  // Times are this rank's MonotonicNanos.
  absl::StatusOr<StepActivity> End(TrainRank& rank);

 private:
  absl::Status AddPipeline(TrainRank& rank, StepActivity& activity);

  TimedOps ops_;
  const std::shared_ptr<TierLog> tiers_;
  const std::shared_ptr<CollectiveLog> collectives_;
  const int64_t clock_offset_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_STEP_METER_H_
