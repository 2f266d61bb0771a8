// PlaceParameters: when a rank gathers its stages' parameters and gives them
// up, for pipelines whose parameters are sharded (ZeRO-3 under pipelining).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Schedule placed, PlaceParameters(schedule, {.prefetch = 2,
//                                                   .max_unsharded = 3}));
//
// The rule: before each computation, and right after the one before it, the
// rank looks at that one and the `prefetch` after it (a pair counts as one).
// It gives up the stages that are not among them, and gathers those that are,
// in the order in which they come. So a stage is gathered `prefetch`
// computations before its use, kept while its next use is as near as that, and
// given up right after the last. Where a budget holds fewer stages, those whose
// use is nearest have it. Once the rank has finished a stage's last backward
// its gradients are reduced.
//
// The rules are those of PyTorch's _add_unshard_reshard and _add_reduce_grad
// (torch.distributed.pipelining.schedules), with distance and budget apart.
#ifndef TESSERA_PIPELINE_PASSES_PLACE_PARAMETERS_H_
#define TESSERA_PIPELINE_PASSES_PLACE_PARAMETERS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

struct ParameterOptions {
  // How many computations ahead of a stage's use it is gathered; 0: right
  // before it.
  int64_t prefetch = 1;
  // The most stages that a rank has gathered at a time; 0: any number. A pair
  // of two stages needs 2.
  int64_t max_unsharded = 0;
};

// Place before AddCommunication: gathers then start before receives that block.
// A rank that holds a stage but computes nothing of it (a two-way map with too
// few micro-batches) reduces its gradients at the end. InvalidArgument for
// negative options, a stage that does not exist, a schedule that has UNSHARD,
// RESHARD or REDUCE_GRAD already, or a pair of more stages than
// `max_unsharded`. Linear time in actions, times the stages of a rank.
absl::StatusOr<Schedule> PlaceParameters(const Schedule& schedule,
                                         const ParameterOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_PLACE_PARAMETERS_H_
