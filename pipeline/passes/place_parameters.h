// PlaceParameters: adds the actions by which a rank gathers the parameters of
// its stages (UNSHARD), releases them (RESHARD) and reduces their gradients
// (REDUCE_GRAD), for ZeRO under pipelining. After SplitStages, a stage is a
// layer.
//
//   TESSERA_ASSIGN_OR_RETURN(Schedule placed, PlaceParameters(schedule, {
//       .prefetch = 1, .unsharded_bytes = bytes_by_stage,
//       .max_unsharded_bytes = 64 << 20}));
//
// Gathers. Before each computation, and right after the previous one, the rank
// looks at that computation and the next `prefetch` ones (a pair counts as
// one). It releases the gathered stages that these computations do not use, and
// gathers the stages that they do use, in order of use. So a stage is gathered
// `prefetch` computations before its use, kept while its next use is within
// that distance, and released right after the last. If a limit allows fewer
// stages, the pass keeps those that are used soonest, which is Belady's rule
// (IBM Systems Journal 5, 1966): with a large prefetch, a stage is gathered as
// seldom as the limit allows.
//
// Reductions. A stage's gradients are reduced right after its last backward of
// the step, or after each backward. The latter keeps no whole gradients between
// micro-batches, and multiplies the bytes sent by the number of micro-batches.
//
// With one stage per rank the rules are those of PyTorch's _add_unshard_reshard
// and _add_reduce_grad (torch.distributed.pipelining.schedules).
#ifndef TESSERA_PIPELINE_PASSES_PLACE_PARAMETERS_H_
#define TESSERA_PIPELINE_PASSES_PLACE_PARAMETERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

enum class ReducePlacement : uint8_t {
  kNone,            // No REDUCE_GRAD.
  kLastMicroBatch,  // Once per step.
  kEachMicroBatch,  // After every backward (B or W).
};

struct ParameterOptions {
  // The number of computations between the gather of a stage and its use; 0
  // gathers right before the use.
  int64_t prefetch = 1;
  // The maximum number of stages gathered on a rank at a time; 0: unlimited. A
  // pair of two stages needs 2.
  int64_t max_unsharded = 0;
  // By stage, the bytes of its gathered parameters; a stage of 0 bytes is never
  // gathered. Empty: every stage is gathered, and the sizes are unknown.
  std::vector<int64_t> unsharded_bytes = {};
  // The maximum number of bytes gathered on a rank at a time; 0: unlimited.
  int64_t max_unsharded_bytes = 0;
  ReducePlacement reduce = ReducePlacement::kLastMicroBatch;
};

// Call it before AddCommunication, so that gathers start before receives that
// block. A rank that holds a stage but computes nothing of it (a two-way map
// with too few micro-batches) reduces its gradients at the end. InvalidArgument
// for negative options, a number of sizes other than one per stage, an unknown
// stage, a schedule that already has UNSHARD, RESHARD or REDUCE_GRAD, or a
// computation whose own stages exceed a limit: the message names the stage and
// the bytes that it needs. Time: actions x stages gathered at a time.
absl::StatusOr<Schedule> PlaceParameters(const Schedule& schedule,
                                         const ParameterOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_PLACE_PARAMETERS_H_
