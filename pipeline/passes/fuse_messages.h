// FuseMessages: a send and a receive with one rank that stand next to each
// other become one exchange.
//
//   1SEND_F3, 1RECV_B0      ->  (1SEND_F3;1RECV_B0)
//
// In a list both are still there, the first with with_next. They are started at
// once, each completes when it can, and the rank goes on when both have. So the
// messages of 1F1B's steady state, an activation one way and a gradient the
// other, cross on the wire (PyTorch batches them likewise, as batch_isend_irecv
// must be used).
//
// A schedule that cannot deadlock stays so: a rank waits for the same messages
// as before, and holds none of them back until another is done. One that
// deadlocks because two ranks each send first may be mended.
#ifndef TESSERA_PIPELINE_PASSES_FUSE_MESSAGES_H_
#define TESSERA_PIPELINE_PASSES_FUSE_MESSAGES_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// `schedule` is lowered (AddCommunication). From the begin of each list, every
// send and receive in a row, in either order, that have the same peer and are
// in no pair yet become one. InvalidArgument, with rank and position, where a
// message has no stage, micro-batch or rank at its other end, or more than two
// actions run together; whatever else there is says Validate.
absl::StatusOr<Schedule> FuseMessages(const Schedule& schedule);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_FUSE_MESSAGES_H_
