// CheckParameters: proves that a schedule gathers parameters and reduces
// gradients correctly, within a memory limit.
#ifndef TESSERA_PIPELINE_PROOF_PARAMETERS_H_
#define TESSERA_PIPELINE_PROOF_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The bytes of a stage's gathered parameters and whole gradients, in addition
// to the shards that a rank always holds. Indexed by stage; empty for zeros.
struct ParameterSizes {
  // Held from UNSHARD to RESHARD.
  std::vector<int64_t> unsharded_bytes = {};
  // Held from the first B or W after a REDUCE_GRAD to the end of the next
  // reduction. It ends at the latest at the rank's next REDUCE_GRAD, since at
  // most one reduction is under way.
  std::vector<int64_t> unreduced_bytes = {};
  // Maximum of both together on a rank; 0: unlimited.
  int64_t limit = 0;
};

struct ParameterPeaks {
  // By rank, the maxima over time: gathered stages, bytes of gathered
  // parameters, and bytes of these and unreduced gradients together.
  std::vector<int64_t> unsharded;
  std::vector<int64_t> unsharded_bytes;
  std::vector<int64_t> bytes;
};

// Checks three properties. (1) If a rank gathers a stage at all, UNSHARD and
// RESHARD of it alternate, the last one is a RESHARD, and every F, B and I of
// the stage is between the two (W needs no parameters). (2) If the schedule
// reduces any stage, it reduces every stage on each rank that holds it, after
// the last weight gradient of the stage; a weight gradient precedes the first
// reduction, if the rank computes one, and each further reduction. (3) The
// limit of `sizes` is never exceeded. InvalidArgument otherwise, with the rank,
// the position and the action, and for the limit the stages held and their
// bytes. Precondition: stages exist (see Coverage).
//
// Replicas. The ranks that share the parameters of a stage (data-parallel
// ranks) run the same list, each in a pipeline of its own, and UNSHARD and
// REDUCE_GRAD are collectives among them. That cannot deadlock if one pipeline
// alone cannot: a run of one pipeline puts all messages and collectives into
// one total order, which agrees with every list. Take the first event in that
// order that some replica has not completed. All replicas have completed the
// events before it, so its participants have reached it in every replica, and
// it completes.
absl::StatusOr<ParameterPeaks> CheckParameters(
    const Schedule& schedule, const ParameterSizes& sizes = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_PARAMETERS_H_
