// Simulate: when every action of a schedule begins and ends, and what memory it
// takes.
//
//   TESSERA_ASSIGN_OR_RETURN(const Timeline timeline,
//                            Simulate(schedule, costs));
//   timeline.makespan;
//   timeline.BubbleRate(0);      // of rank 0
//   CriticalPath(schedule, timeline);             // critical_path.h
//
// Computations. Each rank does its own in their order, each as soon as what it
// needs is there. Forward needs the stage before, backward needs the stage
// after and its own forward, the gradient of the weights needs that of the
// input. The two of a pair run one after the other.
//
// Messages. They take what Links and StageCosts::communication say. Those of a
// link go one at a time, in the order in which their sender comes to them.
//   - Beside computations (overlap_communication): a message starts when its
//     result is there (communication implied) or its SEND is reached (lowered);
//     a RECV takes nothing, the computation that needs the message waits.
//   - Not beside them: they take the ranks' own time. Lowered, by rendezvous: a
//     SEND and its RECV wait for each other, and both ranks are taken until the
//     message is there, or both messages of an exchange (a pair) are.
//     Implied, with buffers: a sender is taken from the end
//     of the computation until its result is there, a receiver only waits.
//
// Parameters. UNSHARD and REDUCE_GRAD begin when the rank's list comes to them
// and run beside computations and messages, one at a time; computations of a
// stage wait for its UNSHARD. RESHARD takes no time.
//
// Optimizer. Each rank's step begins after its last action, and where ranks are
// synchronised once all of them are there and have exchanged what they must.
//
// There is no clock: every processor, link and stream is used by one rank
// alone, in the order of its list, so that one pass over the actions, each as
// soon as it can be timed, is the run by events. Time is linear in them.
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

// InvalidArgument if costs are wrong (CheckCosts, CheckLinks) or an action
// is none of this schedule. FailedPrecondition if the schedule cannot be
// completed: names the rank, the position, the action and what it waits for.
// Checks only that the schedule can run to its end; Validate checks the rest.
absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const Costs& costs,
                                  const SimulateOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_SIMULATE_H_
