// Agreement of ranks before a pipeline runs: schedule and options, shapes of
// boundary tensors, and, after a step, one timeline of all ranks.
#ifndef TESSERA_PIPELINE_EXECUTE_AGREEMENT_H_
#define TESSERA_PIPELINE_EXECUTE_AGREEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "pipeline/execute/options.h"
#include "pipeline/execute/shared_gradients.h"
#include "pipeline/execute/stage.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// What the ranks of a pipeline must have in common before they run.
//
//   TESSERA_RETURN_IF_ERROR(
//       Agree(communicator, HashOf(schedule, options), own_status));

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

// Negotiate: what every stage hands to the next, asked of the stages.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::vector<TensorSpec> boundaries,
//       Negotiate(communicator, schedule.map, stage_of, call));
//
// A collective: stage by stage, the rank that holds it asks it for its output,
// and tells all others in a message of 80 bytes. The second copy of a stage
// under a two-way map must say the same. An error names the rank and the stage;
// the other ranks wait until the caller aborts the group.
absl::StatusOr<std::vector<TensorSpec>> Negotiate(
    collectives::Communicator& communicator, const StageMap& map,
    const StageOf& stage_of, const collectives::CallOptions& call);

// GatherTimeline: what every rank measured, on every rank.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Timeline measured,
//       GatherTimeline(communicator, trace.timeline(), call));
//
// A collective.
absl::StatusOr<Timeline> GatherTimeline(collectives::Communicator& communicator,
                                        const RankTimeline& own,
                                        const collectives::CallOptions& call);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_AGREEMENT_H_
