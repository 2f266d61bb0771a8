// LoadCheckpoint restores a checkpoint exactly, into a ShardedState of any
// other world size, stage and layout. VerifyCheckpoint verifies every byte, and
// CheckpointReader reads any elements.
//
//   TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
//                            LatestCheckpoint("/ckpt"));
//   TESSERA_ASSIGN_OR_RETURN(
//       const LoadedCheckpoint loaded,
//       LoadCheckpoint(latest.path, {.shard = &data_group}, *state));
//   // Continue after step loaded.step, with loaded.metadata.
#ifndef TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_
#define TESSERA_ZERO3_CHECKPOINT_LOAD_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/shard_file.h"
#include "zero3/layout/state_format.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3 {

// Reads any elements of a checkpoint; reads only the blocks that contain them.
//
//   TESSERA_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path, "tp0"));
//   TESSERA_RETURN_IF_ERROR(reader->Read(id, StatePart::kValue, 100, 200,
//                                        array));
//
// All data is verified: DataLoss names the file, the offset and the parameter.
// One thread at a time.
class CheckpointReader {
 public:
  // Opens one part of the checkpoint in the directory `path`. Errors as for
  // ReadManifest and CheckpointManifest::Find.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      std::string path, std::string_view part);

  const CheckpointManifest& manifest() const { return manifest_; }
  const CheckpointPart& part() const { return *part_; }

  // Reads elements [begin, end) of one part of a parameter's state into `to`.
  // InvalidArgument, before anything is read, if the elements or the state do
  // not exist, `to` has another format or size, or `begin` or `end` is inside a
  // block of the format.
  absl::Status Read(ParameterId parameter, StatePart part, int64_t begin,
                    int64_t end, const StateArray& to);

 private:
  CheckpointReader(std::string path, CheckpointManifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  absl::Status CheckRead(ParameterId parameter, StatePart part, int64_t begin,
                         int64_t end, const StateArray& to) const;
  absl::StatusOr<const ShardFile*> FileOf(int64_t rank);
  absl::Status ReadOverlap(const ShardFile& file, const BlockEntry& entry,
                           int64_t begin, int64_t end, const StateArray& to);

  const std::string path_;
  const CheckpointManifest manifest_;
  const CheckpointPart* part_ = nullptr;
  std::map<int64_t, std::unique_ptr<ShardFile>> files_;  // By rank; open.
  std::vector<std::byte> block_;
};

// OK if the manifest is valid, exactly its files exist, every block has the
// right offset, format and checksum, and every element of every parameter's
// state exists once. Otherwise the first error and the number of files with
// errors.
absl::Status VerifyCheckpoint(const std::string& path);

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
