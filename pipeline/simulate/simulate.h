// Simulate: begin, end and memory of every action of a schedule.
//
//   TESSERA_ASSIGN_OR_RETURN(const Timeline timeline,
//                            Simulate(schedule, costs));
//   timeline.makespan;
//   timeline.BubbleRate(0);      // of rank 0
//   CriticalPath(schedule, timeline);             // critical_path.h
//
// Computations. Each rank executes its list in order, each action as soon as
// its inputs are ready. Forward needs the previous stage, backward needs the
// next stage and its own forward, the gradient of the weights needs that of the
// input. The two of a pair run one after the other.
//
// Messages. Links and StageCosts::communication give their times. Messages of a
// link go one at a time, in the order in which their sender reaches them.
//   - Overlapped (overlap_communication): a message starts when its tensor is
//     ready (implied communication) or its SEND is reached (lowered); a RECV
//     takes no time, the computation that needs the message waits.
//   - Not overlapped: they take the ranks' time. Lowered, by rendezvous: a SEND
//     and its RECV wait for each other, and block both ranks until the message,
//     or both messages of an exchange (a pair), arrive. Implied, with
//     buffers: a sender is blocked from the end of the computation until its
//     result arrives, a receiver only waits.
//
// Parameters. UNSHARD and REDUCE_GRAD begin when the rank's list reaches them
// and overlap with computations and messages, one at a time; computations of a
// stage wait for its UNSHARD. RESHARD takes no time.
//
// Optimizer. Each rank's step begins after its last action; with
// synchronisation, after all ranks have finished and exchanged their data.
//
// Every processor, link and stream is used by one rank, in list order, so one
// pass over the actions, each as soon as its time is known, replaces a
// simulation by events. Time is linear in the number of actions.
#ifndef TESSERA_PIPELINE_SIMULATE_SIMULATE_H_
#define TESSERA_PIPELINE_SIMULATE_SIMULATE_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

struct SimulateOptions {
  // Fills in RankTimeline's `communications` and `memory`. Simulate is faster
  // without them, for callers that try many schedules and need the totals.
  // Implied messages that take no time are not among `communications`; the
  // schedule's own sends, receives and RESHARD always are.
  bool traces = true;
};

// InvalidArgument if costs are invalid (CheckCosts, CheckLinks) or an action
// does not belong to this schedule. FailedPrecondition if the schedule cannot
// complete: names the rank, the position, the action and what it waits for.
// Checks only that the schedule can complete; Validate checks the rest.
absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const Costs& costs,
                                  const SimulateOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_SIMULATE_H_
