// Collectives by which the ranks of a pipeline agree: before it runs, on
// schedule, options and shapes of boundary tensors; after a step, on one
// timeline of all ranks.
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

// A hash of everything that must be equal on all ranks: every rank's actions,
// the map, the boundaries, the tied weights, and tracing. Stable across builds.
uint64_t HashOf(const Schedule& schedule, const ExecutorOptions& options);

// A collective. Returns OK if `own` is OK on every rank and all hashes are
// equal. Otherwise a rank whose `own` is an error returns that error, and every
// other rank returns FailedPrecondition, naming the ranks that failed with
// their errors, or the ranks whose hash differs from the majority. The
// communicator stays usable.
//
//   TESSERA_RETURN_IF_ERROR(
//       CheckSameSchedule(communicator, HashOf(schedule, options),
//                         own_status, call));
absl::Status CheckSameSchedule(collectives::Communicator& communicator,
                               uint64_t hash, const absl::Status& own,
                               const collectives::CallOptions& call);

// Returns the specs of the tensors between stages, as the stages report them.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::vector<TensorSpec> boundaries,
//       Negotiate(communicator, schedule.map, stage_of, call));
//
// A collective: stage by stage, the rank that holds the stage queries its
// OutputSpec and broadcasts it in 80 bytes. In a two-way map both copies of a
// stage must return the same spec. An error names the rank and the stage; the
// other ranks wait until the caller aborts the group.
absl::StatusOr<std::vector<TensorSpec>> Negotiate(
    collectives::Communicator& communicator, const StageMap& map,
    const StageOf& stage_of, const collectives::CallOptions& call);

// A collective. Returns the measured timelines of all ranks, on every rank.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Timeline measured,
//       GatherTimeline(communicator, trace.timeline(), call));
absl::StatusOr<Timeline> GatherTimeline(collectives::Communicator& communicator,
                                        const RankTimeline& own,
                                        const collectives::CallOptions& call);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_AGREEMENT_H_
