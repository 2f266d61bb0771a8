// The implementation of Simulate: the check of its arguments (CheckInputs) and
// one run (Simulation).
#ifndef TESSERA_PIPELINE_SIMULATE_SIMULATION_H_
#define TESSERA_PIPELINE_SIMULATE_SIMULATION_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/proof/action_position.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/rank_memory.h"
#include "pipeline/simulate/timeline.h"
#include "pipeline/simulate/transfers.h"

namespace tessera::pipeline {

// The kinds of actions that a schedule has besides computations.
struct Contents {
  bool messages = false;    // Sends or receives: the schedule is lowered.
  bool parameters = false;  // UNSHARD, RESHARD or REDUCE_GRAD.
};

// InvalidArgument if the costs are invalid or do not fit the schedule, an
// action names a stage or micro-batch that does not exist or belongs to another
// rank, a message does not connect two ranks, or bytes could add up to more
// than 2^62.
absl::StatusOr<Contents> CheckInputs(const Schedule& schedule,
                                     const Costs& costs);

// One run of Simulate.
//
//   Simulation run(schedule, costs, contents, /*traces=*/true);
//   TESSERA_RETURN_IF_ERROR(run.Run());
//   return std::move(run).TakeTimeline();
class Simulation {
 public:
  // `contents` is the result of CheckInputs for the other two, which must
  // outlive it.
  Simulation(const Schedule& schedule, const Costs& costs,
             const Contents& contents, bool traces);

  // FailedPrecondition if a rank waits forever.
  absl::Status Run();
  Timeline TakeTimeline() && { return std::move(timeline_); }

 private:
  struct RankState {
    explicit RankState(bool keep_curve) : memory(keep_curve) {}

    size_t next = 0;   // Index of the next action.
    double clock = 0;  // When the rank is free for it.
    bool has_turn = true;
    bool exchanges = false;  // Waits at messages for other ranks;
    size_t open = 0;         // the number of these not transferred yet.
    int64_t activations = 0;
    MemoryMeter memory;
    ParameterStream parameters;
  };

  RankState& State(int32_t rank) { return states_[static_cast<size_t>(rank)]; }
  RankTimeline& Line(int32_t rank) {
    return timeline_.ranks[static_cast<size_t>(rank)];
  }
  const StageCosts& CostsOf(int32_t stage) const {
    return costs_.stages[static_cast<size_t>(stage)];
  }

  // Executes the rank's next action; false if it must wait.
  bool Step(int32_t rank);
  bool Compute(int32_t rank, const Action& action);
  void Hold(int32_t rank, const Action& action, double begin, double end);
  // Passes the result of an ended computation to the neighbouring stage, unless
  // a SEND does.
  void HandOn(int32_t rank, const Action& action, double end);

  // Sends and receives.
  bool Communicate(int32_t rank);
  // The message at the rank's position, or the two that run together.
  std::span<const Action> MessagesAt(int32_t rank) const;
  Action SendFor(const Action& action) const;
  // Executes messages by rendezvous; false until all are transferred.
  bool Exchange(int32_t rank, std::span<const Action> unit);
  void GetThrough(const Action& send, double ready);

  // Records the arrival of a message.
  void Arrive(const Hop& hop, const Action& send, const TimeSpan& span,
              bool record = true);
  void Record(int32_t rank, const TimedAction& timed) {
    if (traces_) Line(rank).communications.push_back(timed);
  }
  // True if the receiving rank waits at a computation of that stage and
  // micro-batch.
  bool WaitsFor(const Hop& hop, int32_t microbatch) const;
  // Marks the rank as able to continue.
  void Wake(int32_t rank);

  absl::Status CheckComplete() const;
  void Finish();

  const Schedule& schedule_;
  const Costs& costs_;
  const Contents contents_;
  const bool traces_;
  const Messages messages_;
  const Hops hops_;
  Wire wire_;
  Results results_;
  std::optional<Meetings> meetings_;  // If messages are rendezvous.
  std::vector<RankState> states_;
  std::vector<int32_t> turns_;  // Ranks that may continue.
  Timeline timeline_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_SIMULATION_H_
