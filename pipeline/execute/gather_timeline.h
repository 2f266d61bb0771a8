// GatherTimeline: what every rank measured, on every rank.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Timeline measured,
//       GatherTimeline(communicator, trace.timeline(), call));
#ifndef TESSERA_PIPELINE_EXECUTE_GATHER_TIMELINE_H_
#define TESSERA_PIPELINE_EXECUTE_GATHER_TIMELINE_H_

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// A collective.
absl::StatusOr<Timeline> GatherTimeline(collectives::Communicator& communicator,
                                        const RankTimeline& own,
                                        const collectives::CallOptions& call);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_GATHER_TIMELINE_H_
