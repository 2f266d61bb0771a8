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

// A hash of everything in which the ranks must not differ: every rank's
// actions, the map, the boundaries, the tied weights, and tracing. The same in
// every build.
uint64_t HashOf(const Schedule& schedule, const ExecutorOptions& options);

// A collective. OK if `own` is OK on every rank and all hashes are equal.
// Otherwise every rank returns an error that names the ranks that failed and
// their errors, or those that differ from the majority: FailedPrecondition, or
// on a rank that failed its own error. The communicator stays usable.
//
//   TESSERA_RETURN_IF_ERROR(
//       CheckSameSchedule(communicator, HashOf(schedule, options),
//       own_status));
absl::Status CheckSameSchedule(collectives::Communicator& communicator,
                               uint64_t hash, const absl::Status& own,
                               const collectives::CallOptions& call);

// The shapes of the tensors between stages, requested from the stages.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::vector<TensorSpec> boundaries,
//       Negotiate(communicator, schedule.map, stage_of, call));
//
// A collective: stage by stage, the rank that holds it requests its output's
// shape and sends it to all others in 80 bytes. The second copy of a stage
// under a two-way map must return the same. An error names the rank and the
// stage; the other ranks wait until the caller aborts the group.
absl::StatusOr<std::vector<TensorSpec>> Negotiate(
    collectives::Communicator& communicator, const StageMap& map,
    const StageOf& stage_of, const collectives::CallOptions& call);

// The measured timelines of all ranks, on every rank.
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
