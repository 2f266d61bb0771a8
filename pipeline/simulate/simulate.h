// Simulate: begin, end and memory of every action of a schedule.
//
//   TESSERA_ASSIGN_OR_RETURN(const Timeline timeline,
//                            Simulate(schedule, costs));
//   timeline.makespan;
//   timeline.BubbleRate(0);      // of rank 0
//
// Computations. Each rank executes its list in order, each action as soon as
// its inputs are ready. A forward needs the output of the previous stage, a
// backward the gradient from the next stage and its own forward, the gradient
// of the weights that of the input. The two actions of a pair run one after the
// other.
//
// Messages. Links and StageCosts::communication determine their times. A link
// transfers one message at a time, in the order in which the sender reaches
// them.
//   - Overlapped (overlap_communication): a message starts when its tensor is
//     ready (implied communication) or its SEND is reached (lowered); a RECV
//     takes no time; the computation that needs the message waits.
//   - Not overlapped: messages block the ranks. In a lowered schedule a SEND
//   and
//     its RECV meet in a rendezvous: they wait for each other, and block both
//     ranks until the message, or both messages of an exchange (a pair),
//     arrive. Implied messages are buffered: the sender is blocked from the end
//     of the computation until its result arrives, the receiver only waits for
//     it.
//
// Parameters. UNSHARD and REDUCE_GRAD begin when the rank's list reaches them
// and overlap with computations and messages, one at a time; computations of a
// stage wait for its UNSHARD. RESHARD takes no time.
//
// Optimizer. Each rank's step begins after its last action; with
// synchronisation, after all ranks have finished and exchanged their data.
//
// Every processor, link and stream is used by one rank, in list order. So no
// event queue is needed: one pass handles each action as soon as its time is
// known. Time is linear in the number of actions.
#ifndef TESSERA_PIPELINE_SIMULATE_SIMULATE_H_
#define TESSERA_PIPELINE_SIMULATE_SIMULATE_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

struct SimulateOptions {
  // If true, fills in `communications` and `memory` of RankTimeline. Callers
  // that try many schedules and need only totals can turn it off for speed.
  // `communications` omits implied messages that take no time, but includes all
  // sends, receives and RESHARD of the schedule.
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
