// What the ranks of a pipeline must have in common before they run.
//
//   TESSERA_RETURN_IF_ERROR(
//       Agree(communicator, HashOf(schedule, options), own_status));
#ifndef TESSERA_PIPELINE_EXECUTE_AGREEMENT_H_
#define TESSERA_PIPELINE_EXECUTE_AGREEMENT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "pipeline/execute/options.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Of everything in which the ranks must not differ: every rank's actions, the
// map, the boundaries, the tied weights, whether there is a trace. The same in
// every build.
uint64_t HashOf(const Schedule& schedule, const ExecutorOptions& options);

// A collective. OK where every rank's `own` is, and all hashes are the same.
// Otherwise an error on every rank, that names the ranks that failed and with
// what, or those that differ from the most: FailedPrecondition, or on a rank
// that failed its own error. Breaks nothing.
absl::Status Agree(collectives::Communicator& communicator, uint64_t hash,
                   const absl::Status& own,
                   const collectives::CallOptions& call);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_AGREEMENT_H_
