// StepMeter: measures the activity of a rank in each step.
//
//   TESSERA_ASSIGN_OR_RETURN(const int64_t offset, ClockOffset(world));
//   StepMeter meter(cpu_ops, collective_log, offset);
//   ... TrainRank::Create(world, options, samples, meter.ops()) ...
//   TESSERA_RETURN_IF_ERROR(meter.Begin(*rank));
//   rank->Step();
//   TESSERA_ASSIGN_OR_RETURN(const StepActivity activity, meter.End(*rank));
//   meter.Messages(*rank).messages;
#ifndef TESSERA_TOOLS_TRAIN_REPORT_STEP_METER_H_
#define TESSERA_TOOLS_TRAIN_REPORT_STEP_METER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/engine/operation_context.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/train/predict/message_table.h"
#include "tools/train/predict/rank_traffic.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/step/train_rank.h"

namespace tessera::train {

// An identifier of the running system, which changes at every boot; its
// processes share a clock. Empty if there is none.
std::string_view BootId();

// The offset to add to this rank's MonotonicNanos to get rank 0's. A
// collective. Exactly 0 for ranks with rank 0's `system`. For others it is
// measured by the shortest of eight round trips, assuming equal times in both
// directions (Cristian, Probabilistic clock synchronization, 1989), so that the
// error is at most half of that round trip. `now` is this rank's clock.
absl::StatusOr<int64_t> ClockOffset(
    collectives::Communicator& world, std::string_view system = BootId(),
    const std::function<int64_t()>& now = collectives::MonotonicNanos);

// Created and used by the rank's thread.
class StepMeter {
 public:
  // Observes `ops`, which outlives this; `collectives` may be null.
  // `clock_offset` is ClockOffset's.
  StepMeter(tensor_parallel::Ops& ops,
            std::shared_ptr<CollectiveLog> collectives, int64_t clock_offset);

  ~StepMeter() { ops_.Observe(nullptr, nullptr); }
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  // The rank must compute with these ops, and its tiers must write to this log.
  tensor_parallel::Ops& ops() { return ops_; }
  const std::shared_ptr<TierLog>& tiers() const { return tiers_; }

  // Begins a step: drops earlier measurements of its activity. Waits for the
  // gathers of the first step, whose messages are not counted.
  absl::Status Begin(TrainRank& rank);

  // The activity of the step that the rank has just taken. A collective of its
  // pipeline group. Times are this rank's MonotonicNanos.
  absl::StatusOr<StepActivity> End(TrainRank& rank);

  // Runs `body` between two steps without counting its messages, such as a
  // validation. Waits for the gathers of the last step first. Call End before.
  absl::Status LeaveOut(TrainRank& rank,
                        absl::FunctionRef<absl::Status()> body);

  // The messages of all measured steps, without LeaveOut. Excludes the first
  // step if there are others, because it also exchanges what later steps know.
  // Includes gathers of new weights that outlasted their step, up to now.
  MeasuredMessages Messages(const TrainRank& rank);

  // Call it before the rank is destroyed and another one takes steps: counts
  // the gathers that outlasted the last step. Returns the rank's traffic so
  // far.
  RankTraffic AddLateGathers(const TrainRank& rank);

 private:
  void AddOperation(tensor_parallel::OperationKind kind, int64_t begin,
                    int64_t end);
  absl::Status AddPipeline(TrainRank& rank, StepActivity& activity);
  void AddMessages(const TrainRank& rank);

  OpsTime ops_time_;
  tensor_parallel::Ops& ops_;
  const std::shared_ptr<TierLog> tiers_;
  const std::shared_ptr<CollectiveLog> collectives_;
  const int64_t clock_offset_;
  // The rank's traffic at the begin and at the end of its last step.
  std::optional<RankTraffic> at_begin_, at_end_;
  int64_t ended_steps_ = 0;
  std::optional<RankTraffic> traffic_;  // Of these steps; see Messages.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_STEP_METER_H_
