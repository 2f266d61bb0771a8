// The proof of what a schedule does with the stages' parameters.
#ifndef TESSERA_PIPELINE_PROOF_PARAMETERS_H_
#define TESSERA_PIPELINE_PROOF_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// By rank, how many stages are gathered at most at a time. Where a rank ever
// gathers a stage: UNSHARD and RESHARD of it alternate, the last is a RESHARD,
// and every computation of the stage is between them. Where any stage of the
// schedule is reduced: every stage is, on each rank that holds it, once and
// after its last weight gradient. InvalidArgument otherwise. Stages must exist
// (see Coverage).
absl::StatusOr<std::vector<int64_t>> CheckParameters(const Schedule& schedule);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_PARAMETERS_H_
