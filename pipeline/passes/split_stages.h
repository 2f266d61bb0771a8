// SplitStages: divides stages into smaller ones on the same rank, so that the
// work per stage (gathering parameters, reducing gradients) becomes work per
// layer.
//
//   // Stage 0 has an embedding and 4 layers, stage 1 has 4 layers and a head:
//   TESSERA_ASSIGN_OR_RETURN(Schedule by_layer, SplitStages(schedule, {5, 5}));
//   //   0F0        ->  0F0,1F0,2F0,3F0,4F0
//   //   1B0        ->  9B0,8B0,7B0,6B0,5B0
//
// The parts of a stage replace it in the schedule: forwards in ascending order,
// backwards in descending order. A stage of 0 parts is removed: its predecessor
// sends to its successor. A pair (a forward and a backward that run together)
// becomes pairs of one part each, until one of the two has no parts left.
// Parts on one rank exchange no messages, so the messages between ranks are
// those between the remaining stages.
#ifndef TESSERA_PIPELINE_PASSES_SPLIT_STAGES_H_
#define TESSERA_PIPELINE_PASSES_SPLIT_STAGES_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// Returns the schedule of the smaller stages. `schedule` must have computations
// only. InvalidArgument if it has other actions or a malformed pair, with the
// rank and position, and as for StageMap::Split.
absl::StatusOr<Schedule> SplitStages(const Schedule& schedule,
                                     std::span<const int64_t> parts);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_SPLIT_STAGES_H_
