// ChoosePlacement: chooses where a schedule gathers parameters and reduces
// gradients, so that its simulated step is as short as a memory limit allows.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const Placement placement,
//       ChoosePlacement(by_layer, costs, {.prefetches = {0, 1, 2, 4},
//                                         .max_unsharded_bytes = 256 << 20}));
//   placement.schedule;                 // With UNSHARD, RESHARD, REDUCE_GRAD.
//   placement.options.prefetch;         // 2
//
// The candidates are the results of PlaceParameters with each prefetch distance
// and each ReducePlacement. Candidates that exceed a limit are discarded. Among
// candidates at most `slack` slower than the fastest, it chooses the one with
// the lowest peak memory.
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
  // Limit of gathered parameters on a rank; 0: unlimited.
  int64_t max_unsharded_bytes = 0;
  // Limit of RankTimeline::peak_bytes on every rank, which includes
  // activations, gathered parameters and unreduced gradients as given by the
  // costs; 0: unlimited.
  int64_t memory_limit = 0;
  // The fraction of the shortest makespan that may be spent to save memory.
  double slack = 1e-3;
};

struct Placement {
  Schedule schedule;
  ParameterOptions options;  // Used to place it.
  Timeline timeline;         // From Simulate, without traces.
  int64_t peak_bytes = 0;    // The maximum over the ranks.
};

// `schedule` must have computations only. InvalidArgument as for
// PlaceParameters and Simulate, and if no candidate is within the limit: the
// message has the smallest sufficient limit. Time: candidates x actions.
absl::StatusOr<Placement> ChoosePlacement(const Schedule& schedule,
                                          const Costs& costs,
                                          const PlacementOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_PLACEMENT_H_
