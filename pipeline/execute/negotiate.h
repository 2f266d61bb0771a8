// Negotiate: what every stage hands to the next, asked of the stages.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::vector<TensorSpec> boundaries,
//       Negotiate(communicator, schedule.map, stage_of, call));
#ifndef TESSERA_PIPELINE_EXECUTE_NEGOTIATE_H_
#define TESSERA_PIPELINE_EXECUTE_NEGOTIATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "pipeline/execute/shared_gradients.h"
#include "pipeline/execute/tensor_spec.h"
#include "pipeline/schedule/stage_map.h"

namespace tessera::pipeline {

// A collective: stage by stage, the rank that holds it asks it for its output,
// and tells all others in a message of 80 bytes. The second copy of a stage
// under a two-way map must say the same. An error names the rank and the stage;
// the other ranks wait until the caller aborts the group.
absl::StatusOr<std::vector<TensorSpec>> Negotiate(
    collectives::Communicator& communicator, const StageMap& map,
    const StageOf& stage_of, const collectives::CallOptions& call);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_NEGOTIATE_H_
