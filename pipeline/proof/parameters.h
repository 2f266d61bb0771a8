// The proof of what a schedule does with the parameters and gradients of its
// stages, and the memory that this takes.
#ifndef TESSERA_PIPELINE_PROOF_PARAMETERS_H_
#define TESSERA_PIPELINE_PROOF_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The bytes that a rank holds of a stage's parameters and gradients besides the
// shards that it always has. Each list is by stage, or empty for zeros.
struct ParameterSizes {
  // From UNSHARD to RESHARD.
  std::vector<int64_t> unsharded_bytes = {};
  // From the first B or W after a REDUCE_GRAD until the reduction is over,
  // which is at the latest at the rank's next REDUCE_GRAD: of two reductions
  // one waits for the other.
  std::vector<int64_t> unreduced_bytes = {};
  // The most that a rank may hold of both together; 0: any number.
  int64_t limit = 0;
};

struct ParameterPeaks {
  // By rank: the most stages that are gathered at a time, and the most bytes of
  // gathered parameters, and of these and unreduced gradients together.
  std::vector<int64_t> unsharded;
  std::vector<int64_t> unsharded_bytes;
  std::vector<int64_t> bytes;
};

// If a rank ever gathers a stage: UNSHARD and RESHARD of it alternate, the last
// is a RESHARD, and every F, B and I of the stage is between them (W needs no
// parameters). If any stage of the schedule is reduced: every stage is, on each
// rank that holds it, after its last weight gradient; a weight gradient comes
// before the first of its reductions, if the rank has any, and between two. The
// limit of `sizes` is never exceeded. InvalidArgument otherwise, with the rank,
// the position and the action, and for the limit the stages that are held and
// their bytes. Stages must exist (see Coverage).
//
// Replicas. The ranks that share the parameters of a stage (data-parallel
// ranks) run the same list, each in a pipeline of its own, and UNSHARD and
// REDUCE_GRAD are collectives among them. That cannot deadlock if one pipeline
// alone cannot: a run of one pipeline puts all messages and collectives into
// one total order, which agrees with every list. Take the first event in that
// order that some replica has not completed. All replicas have completed those
// before it, so the ranks that take part in it have reached it, in every
// replica, and it happens.
absl::StatusOr<ParameterPeaks> CheckParameters(
    const Schedule& schedule, const ParameterSizes& sizes = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_PARAMETERS_H_
