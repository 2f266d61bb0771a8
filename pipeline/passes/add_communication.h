// AddCommunication: lowers a schedule of computations by adding the sends and
// receives between stages on different ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(Schedule lowered, AddCommunication(schedule));
//
// The result cannot deadlock, even if a send completes only when its receive is
// reached (rendezvous). Proof: the pass executes the schedule once and records
// every action in execution order, and a message on both of its ranks at the
// same moment. So there is one total order of all computations and messages,
// and each rank's list agrees with it on all messages. Consider the first
// message in that order that has not completed: it is the next one on both of
// its ranks, and the computations before it need only earlier messages. So it
// can complete, and by induction all can.
//
// A send follows its computation (or the pair that runs together) directly,
// except for receives of messages that were sent in the meantime. A receive
// comes as late as possible: right before the first computation that needs it,
// or before the rank's next send or receive that must follow it. In this
// execution F, I and W take 1 each, B takes 2, a pair the sum of its actions,
// and a message no time.
#ifndef TESSERA_PIPELINE_PASSES_ADD_COMMUNICATION_H_
#define TESSERA_PIPELINE_PASSES_ADD_COMMUNICATION_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// `schedule` has computations and, optionally, UNSHARD, RESHARD and
// REDUCE_GRAD, which keep their positions between the computations.
// InvalidArgument if it is invalid (Communication::kImplied), with Validate's
// message: the rank, the action's position and what it waits for.
absl::StatusOr<Schedule> AddCommunication(const Schedule& schedule);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_ADD_COMMUNICATION_H_
