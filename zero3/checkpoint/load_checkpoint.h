// LoadCheckpoint restores a checkpoint exactly, into a ShardedState of any
// other world size, stage and layout. VerifyCheckpoint verifies every byte.
//
//   TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
//                            LatestCheckpoint("/ckpt"));
//   TESSERA_ASSIGN_OR_RETURN(
//       const LoadedCheckpoint loaded,
//       LoadCheckpoint(latest.path, {.shard = &data_group}, *state));
//   // Continue after step loaded.step, with loaded.metadata.
#ifndef TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_
#define TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3 {

// The progress of VerifyCheckpoint.
struct VerifiedBytes {
  int64_t files = 0;
  int64_t all_files = 0;
  int64_t bytes = 0;  // In `files`.
  int64_t all_bytes = 0;
};

// OK if the manifest is valid, exactly its files exist, every block has the
// right offset, format and checksum, and every element of every parameter's
// state exists once. Otherwise the first error (DataLoss for damaged bytes,
// with the file) and the number of files with errors. Calls `progress` after
// each file.
absl::Status VerifyCheckpoint(
    const std::string& path,
    absl::FunctionRef<void(const VerifiedBytes&)> progress =
        [](const VerifiedBytes&) {});

struct LoadedCheckpoint {
  int64_t step = 0;
  CheckpointMetadata metadata = {};

  friend bool operator==(const LoadedCheckpoint&,
                         const LoadedCheckpoint&) = default;
};

// A collective of all ranks of `groups`, between steps. Restores values, master
// weights, moments, the loss scale and the number of steps from the part
// groups.part; the learning rate and other options are unchanged. Each rank
// reads only the blocks with elements that it owns.
//
// Errors are the same on every rank and name the rank that failed. Without side
// effects: NotFound; InvalidArgument for another model (compare_models.h);
// FailedPrecondition if ranks found different checkpoints. After DataLoss the
// state is partly loaded: load another checkpoint.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& path,
                                                const CheckpointGroups& groups,
                                                ShardedState& state);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_
