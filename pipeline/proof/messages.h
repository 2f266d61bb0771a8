// The messages of a schedule, and the channels that carry them.
//
// A message brings a micro-batch's activations, or their gradient, from a stage
// on one rank to its neighbour on another. Stages on the same rank need none.
// There is one channel for each ordered pair of ranks and each direction
// (forward, backward). It keeps order: the i-th receive of a channel takes what
// its i-th send gave.
#ifndef TESSERA_PIPELINE_PROOF_MESSAGES_H_
#define TESSERA_PIPELINE_PROOF_MESSAGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/proof/coverage.h"
#include "pipeline/proof/place.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

struct Channel {
  int32_t sender = 0;
  int32_t receiver = 0;
  Direction direction = Direction::kForward;
  // Positions in the two ranks' lists: sends[i] belongs to receives[i].
  std::vector<int32_t> sends;
  std::vector<int32_t> receives;
};

// How many messages the schedule needs.
int64_t CountMessages(const Schedule& schedule);

// The channels of a lowered schedule. InvalidArgument where a message is not
// sent, not received or not needed, or a receive would take another message
// than its own.
absl::StatusOr<std::vector<Channel>> MatchMessages(const Schedule& schedule,
                                                   const Coverage& coverage);

// InvalidArgument where a schedule has sends or receives.
absl::Status CheckNoMessages(const Schedule& schedule);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_MESSAGES_H_
