// Proofs about messages: every send has a receive in the same order, and the
// ranks do not deadlock.
#ifndef TESSERA_PIPELINE_PROOF_MESSAGES_H_
#define TESSERA_PIPELINE_PROOF_MESSAGES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/proof/action_position.h"
#include "pipeline/proof/coverage.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// A channel of a lowered schedule, with its messages.
//
// A message transfers a micro-batch's activations, or their gradient, from a
// stage on one rank to its neighbour on another. Stages on the same rank
// exchange no messages. There is one channel per ordered pair of ranks and
// direction (forward, backward). Channels are first-in-first-out: the i-th
// receive of a channel gets the message of its i-th send.
struct Channel {
  int32_t sender = 0;
  int32_t receiver = 0;
  PassDirection direction = PassDirection::kForward;
  // Positions in the two ranks' lists: sends[i] belongs to receives[i].
  std::vector<int32_t> sends;
  std::vector<int32_t> receives;
};

// The number of messages that the schedule needs.
int64_t CountMessages(const Schedule& schedule);

// The channels of a lowered schedule. InvalidArgument if a message is not sent,
// not received or not needed, or a receive would get the wrong message.
absl::StatusOr<std::vector<Channel>> MatchMessages(const Schedule& schedule,
                                                   const Coverage& coverage);

// InvalidArgument if a schedule has sends or receives.
absl::Status CheckNoMessages(const Schedule& schedule);

// Proves that a schedule executes to its end.
//
// Each rank executes its list in order. A Wait is an action of another rank
// that must complete first. Computations that run together start when all of
// them can; a send and a receive that run together complete independently, and
// the rank continues when both have. Ranks are deterministic and share only the
// waits, so whether they stall does not depend on their speeds: one execution,
// in any order, decides it.
//
// InvalidArgument with the cycle of ranks that wait for each other, if the
// schedule's sends and receives stall. A channel holds `buffers` messages; with
// 0 a send and its receive wait for each other (rendezvous). Linear time.
absl::Status CheckMessagesFlow(const Schedule& schedule,
                               std::span<const Channel> channels,
                               int64_t buffers);

// The same for a schedule without sends and receives, in which a computation
// waits for its input from another rank.
absl::Status CheckComputationsFlow(const Schedule& schedule,
                                   const Coverage& coverage);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_MESSAGES_H_
