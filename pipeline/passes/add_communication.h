// AddCommunication: lowers a schedule of computations to one that sends and
// receives what stages on different ranks exchange.
//
//   TESSERA_ASSIGN_OR_RETURN(Schedule lowered, AddCommunication(schedule));
//
// The result cannot deadlock, even where a send completes only when its receive
// is reached. Proof: the pass runs the schedule once and writes every action
// down as it comes in that run, a message on both of its ranks at the same
// moment. So there is one total order of all computations and messages, and
// each rank's list agrees with it on all messages. The first message in that
// order that has not happened yet is on both of its ranks the next one, and all
// that they compute before it needs only messages that come before it: it
// always can happen, and so does every one.
//
// A send comes right after its computation (or the pair that runs together),
// but for receives of messages that were sent while that ran. A receive comes
// as late as it may: right before the first computation that needs it, or the
// next send or receive of the rank that must stay behind it in the order. In
// the run F, I and W last 1 each, B lasts 2, a pair as long as both of its
// actions and a message no time.
#ifndef TESSERA_PIPELINE_PASSES_ADD_COMMUNICATION_H_
#define TESSERA_PIPELINE_PASSES_ADD_COMMUNICATION_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// `schedule` has computations and, optionally, UNSHARD, RESHARD and
// REDUCE_GRAD, which keep their places between the computations.
// InvalidArgument, with Validate's message, if it is not valid (Communication
// ::kImplied): the rank, the action's position and what it waits for.
absl::StatusOr<Schedule> AddCommunication(const Schedule& schedule);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_ADD_COMMUNICATION_H_
