// The proof that a schedule runs to its end.
//
// Each rank does its list in order. What an action of another rank must do
// first is a Wait. Computations that run together start when all can; of a send
// and a receive that do, each completes when it can, and the rank goes on when
// both have. The ranks are deterministic and share nothing but the
// waits, so that whether they stall does not depend on their speeds: running
// them once, in any order, decides it.
#ifndef TESSERA_PIPELINE_PROOF_DEADLOCK_H_
#define TESSERA_PIPELINE_PROOF_DEADLOCK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "pipeline/proof/coverage.h"
#include "pipeline/proof/messages.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// InvalidArgument with the cycle of ranks that wait for each other, where the
// schedule's sends and receives stall. A channel holds `buffers` messages; with
// 0 a send and its receive wait for each other (rendezvous). Linear time.
absl::Status CheckMessagesFlow(const Schedule& schedule,
                               std::span<const Channel> channels,
                               int64_t buffers);

// The same of a schedule without sends and receives: a computation waits for
// its input from another rank.
absl::Status CheckComputationsFlow(const Schedule& schedule,
                                   const Coverage& coverage);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_DEADLOCK_H_
