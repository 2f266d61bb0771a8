// ChoosePlacement: where a schedule gathers parameters and reduces gradients,
// so that its simulated step is as short as a memory limit allows.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const Placement placement,
//       ChoosePlacement(by_layer, costs, {.prefetches = {0, 1, 2, 4},
//                                         .max_unsharded_bytes = 256 << 20}));
//   placement.schedule;                 // With UNSHARD, RESHARD, REDUCE_GRAD.
//   placement.options.prefetch;         // 2
//
// The candidates are PlaceParameters with each prefetch distance and each way
// to reduce gradients. Those that exceed a limit are left out. Of the others,
// those at most `slack` slower than the fastest are equivalent, and the one
// with the lowest peak memory is chosen.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_PLACEMENT_H_
#define TESSERA_PIPELINE_SYNTHESIZE_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

struct PlacementOptions {
  std::vector<int64_t> prefetches = {0, 1, 2, 4, 8, 16};
  std::vector<ReducePlacement> reduces = {ReducePlacement::kLastMicroBatch,
                                          ReducePlacement::kEachMicroBatch};
  // Limit of gathered parameters on a rank; 0: no limit.
  int64_t max_unsharded_bytes = 0;
  // RankTimeline::peak_bytes of any rank: activations, gathered parameters and
  // unreduced gradients as the costs have them; 0: any number.
  int64_t memory_limit = 0;
  // The share of the shortest makespan that may be spent to save memory.
  double slack = 1e-3;
};

struct Placement {
  Schedule schedule;
  ParameterOptions options;  // It was placed with these.
  Timeline timeline;         // As Simulate gives it, without traces.
  int64_t peak_bytes = 0;    // Of the rank with the most.
};

// `schedule` has computations only. InvalidArgument as PlaceParameters and
// Simulate, and if no candidate keeps to the limit: the message has the least
// that one would need. Time: candidates times the actions.
absl::StatusOr<Placement> ChoosePlacement(const Schedule& schedule,
                                          const Costs& costs,
                                          const PlacementOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_PLACEMENT_H_
