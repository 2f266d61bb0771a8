// LoadCheckpoint: a checkpoint of any world size, stage and layout into a
// ShardedState of any other, in every bit.
//
//   TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
//                            LatestCheckpoint("/ckpt"));
//   TESSERA_ASSIGN_OR_RETURN(
//       const LoadedCheckpoint loaded,
//       LoadCheckpoint(latest.path, {.shard = &data_group}, *state));
//   // Go on behind step loaded.step, with loaded.metadata.
#ifndef TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_
#define TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_groups.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3 {

struct LoadedCheckpoint {
  int64_t step = 0;
  CheckpointMetadata metadata = {};

  friend bool operator==(const LoadedCheckpoint&,
                         const LoadedCheckpoint&) = default;
};

// A collective of all ranks of `groups`, between steps. Values, master weights,
// moments, the loss scale and the number of steps become those of the part of
// the checkpoint that is called groups.part; the learning rate and other
// options stay. Each rank reads only the blocks that have elements it owns.
//
// Errors are the same on every rank and name the one that met them. Until every
// rank has read the manifest and found it to be of its model and the same
// checkpoint, nothing is changed: NotFound, InvalidArgument (compare_models.h),
// FailedPrecondition where ranks have found different checkpoints. DataLoss
// after that leaves the state partly loaded: load another checkpoint.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& path,
                                                const CheckpointGroups& groups,
                                                ShardedState& state);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_
