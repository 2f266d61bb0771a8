// The proof that on each rank nothing comes before what it needs of the same
// rank, and that what runs together may.
#ifndef TESSERA_PIPELINE_PROOF_LOCAL_ORDER_H_
#define TESSERA_PIPELINE_PROOF_LOCAL_ORDER_H_

#include "absl/status/status.h"
#include "pipeline/proof/coverage.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// A forward needs the forward of the stage before it; a backward its own
// forward and the backward of the stage after it, a weight's gradient that of
// the input, a send what it sends. What another rank computes is needed as its
// receive where `receives`, and not here otherwise. The actions of a pair start
// together: none may need the other. InvalidArgument names the action that
// comes too early, or the pair that is neither a forward and a B or I, nor a
// send and a receive with one rank.
absl::Status CheckLocalOrder(const Schedule& schedule, const Coverage& coverage,
                             bool receives);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_LOCAL_ORDER_H_
