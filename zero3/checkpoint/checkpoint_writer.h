// CheckpointWriter: writes checkpoints of a ShardedState, each rank its shard,
// while training continues.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer, CheckpointWriter::Create(
//                        {.shard = &data_group},
//                        {.directory = "/ckpt", .keep = 3}));
//   // After a step; the state may take the next one at once:
//   TESSERA_ASSIGN_OR_RETURN(
//       PendingCheckpoint pending,
//       writer->Start(*state, {{"data", position}}));
//   ...
//   TESSERA_ASSIGN_OR_RETURN(const std::string path, pending.Wait());
//
// The ranks share a file system. A checkpoint becomes complete atomically,
// after every rank has written and synced its file and rank 0 the manifest. If
// a rank fails, the directory is unchanged, and every rank gets an error that
// names the rank and the reason.
//
// Create, Start and Save are collectives: all ranks call them in the same
// order, after the same step and between steps (gradients are not saved).
// Ranks agree over a group of their own, independent of other traffic. One
// thread at a time.
//
// A model whose state is several ShardedStates (parameters that are sharded
// over different groups) has a part for each, with a file of every rank in
// each:
//
//   CheckpointWriter::Create({{.shard = &data, .world = &world, .part =
//   "dense"},
//                             {.shard = &edp, .world = &world,
//                              .part = "experts-ep0"}}, options);
//   writer->Start({{*dense, metadata}, {*experts, other_metadata}});
#ifndef TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_WRITER_H_
#define TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "offload/tier/accounting.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// Not owned.
// The ranks that write or read a checkpoint together.
//
//   // Data parallel:
//   {.shard = &data_group}
//   // Hybrid sharding:
//   {.shard = &shard_group, .replicas = &replica_group, .world = &world}
//   // With tensor and pipeline parallel ranks:
//   {.shard = &data_group, .world = &world, .part = "tp1-pp0"}
struct CheckpointGroups {
  // Those of the state (ShardedStateGroups).
  collectives::Communicator* shard = nullptr;
  // The ranks with the same place in other groups that have the same state:
  // the first of them writes.
  collectives::Communicator* replicas = nullptr;
  // All ranks of the checkpoint; null: those of `shard`.
  collectives::Communicator* world = nullptr;
  // The name of the part of the model that this shard group holds.
  std::string part = "";
};

// A copy of the bytes of blocks of a state, so that the state can change.
//
//   TESSERA_ASSIGN_OR_RETURN(Snapshot snapshot,
//                            Snapshot::Take(state, blocks, accounting));
//   TESSERA_RETURN_IF_ERROR(snapshot.ForEachBlock(write));  // on any thread
class Snapshot {
 public:
  // Counts as buffers against `accounting` (null: not counted) while it exists.
  // Does not wait for the state's device. ResourceExhausted if memory is short.
  static absl::StatusOr<Snapshot> Take(
      ShardedState& state, std::vector<BlockRange> blocks,
      std::shared_ptr<offload::Accounting> accounting);

  Snapshot() = default;
  ~Snapshot() { copied_.Wait().IgnoreError(); }
  Snapshot(Snapshot&&) = default;
  Snapshot& operator=(Snapshot&&) = default;

  // Waits for the copy.
  absl::Status ForEachBlock(BlockUse use) const;

 private:
  std::vector<BlockRange> blocks_;
  AccountedMemory memory_;  // One block after the other.
  Event copied_;
  Device* device_ = nullptr;
};

// The reports that ranks exchange about their parts of a checkpoint.
struct SaveReport {
  int64_t rank = 0;  // Of the world. Not a part of the text.
  absl::Status status = absl::OkStatus();
  int64_t step = 0;
  // The shard that this rank has: its part, and its place there.
  std::string part = "";
  int64_t shard_rank = 0;
  int64_t shard_ranks = 1;
  // True if the rank writes the shard: it is the first of the replicas.
  bool writes = true;
  CheckpointFile file = {};  // Once it is written.
  // FormatPart, of the rank that writes shard 0.
  std::string description = "";

  friend bool operator==(const SaveReport&, const SaveReport&) = default;
};

std::string FormatReport(const SaveReport& report);
absl::StatusOr<SaveReport> ParseReport(std::string_view text);

// OK if all ranks are at the same step and write each shard of each part once;
// a rank has a report for each of its states. Otherwise FailedPrecondition,
// with the rank and the remedy.
absl::Status CheckReports(const std::vector<SaveReport>& reports);

// The manifest of the written files of `world` ranks. Preconditions:
// CheckReports and all statuses are OK.
absl::StatusOr<CheckpointManifest> ManifestOf(
    const std::vector<SaveReport>& reports, int64_t world);

// One rank's part in writing a checkpoint.
struct SaveJob {
  std::string directory = "";
  int64_t keep = 0;
  std::string keep_least = "";
  absl::Duration timeout = absl::InfiniteDuration();
  FileCalls* files = nullptr;
  struct Shard {
    // The report so far. With an error the rank still takes part, so that all
    // ranks learn of it.
    SaveReport report = {};
    // Hands over the blocks of this rank's file. Not called unless it writes.
    std::function<absl::Status(BlockUse)> for_each_block = {};
  };
  std::vector<Shard> shards = {};  // At least one.
};

// A collective of `group`. Returns the path of the complete checkpoint, or the
// same error on every rank.
absl::StatusOr<std::string> RunSaveJob(collectives::Communicator& group,
                                       SaveJob job);

struct CheckpointWriterOptions {
  std::string directory = "";
  // Complete checkpoints that stay, with the newest; older ones are removed
  // once it is complete. 0: all stay.
  int64_t keep = 0;
  // A key of metadata: the complete checkpoint with the least number there
  // stays besides (CheckpointDirectory::Prune). "": none does.
  std::string keep_least = "";
  // Snapshots of Start are counted here; null: not counted.
  std::shared_ptr<offload::Accounting> snapshot_memory = nullptr;
  // How long ranks wait for each other: the slowest one's writing.
  absl::Duration timeout = absl::Minutes(30);
  // The largest number of elements per checksum, which is also the unit of
  // reads.
  int64_t block_elements = int64_t{1} << 20;
  FileCalls* files = nullptr;  // Null: FileCalls::System().
};

// A checkpoint that is being written. Copies refer to the same one.
// Thread-safe.
class PendingCheckpoint {
 public:
  // The directory of the complete checkpoint, or the reason for the failure;
  // the same error on every rank, unless the group itself failed. The
  // checkpoint is complete even if the removal of old ones failed.
  absl::StatusOr<std::string> Wait() const;
  bool IsDone() const;

 private:
  friend class CheckpointWriter;
  struct Outcome {
    void Set(absl::StatusOr<std::string> value);

    std::mutex mutex;
    std::condition_variable is_set;
    std::optional<absl::StatusOr<std::string>> result;
  };
  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

// What a checkpoint has of a state. The state is not owned.
struct SavedState {
  ShardedState& state;
  CheckpointMetadata metadata = {};
};

class CheckpointWriter {
 public:
  // `groups` of each state, of one world. InvalidArgument, on the rank that
  // gave them and before it takes part, for invalid options.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      std::span<const CheckpointGroups> groups,
      const CheckpointWriterOptions& options);
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const CheckpointGroups& groups, const CheckpointWriterOptions& options) {
    return Create(std::span(&groups, 1), options);
  }

  // Waits for the checkpoint in progress.
  ~CheckpointWriter();

  // Copies this rank's data to memory (as many bytes as its file has) and
  // writes it on a separate thread. Waits first until the previous checkpoint
  // is done. Errors, including an exceeded budget, are returned by Wait on
  // every rank.
  PendingCheckpoint Start(std::vector<SavedState> states);
  PendingCheckpoint Start(ShardedState& state, CheckpointMetadata metadata) {
    return Start({{state, std::move(metadata)}});
  }

  // The same without a copy and on this thread.
  absl::StatusOr<std::string> Save(std::vector<SavedState> states);
  absl::StatusOr<std::string> Save(ShardedState& state,
                                   CheckpointMetadata metadata) {
    return Save({{state, std::move(metadata)}});
  }

 private:
  // This rank's place in a state's groups.
  struct Place {
    std::string part;
    topology::Rank shard_rank;
    int64_t shard_ranks = 1;
    bool writes = true;
  };

  CheckpointWriter(std::span<const CheckpointGroups> groups,
                   const CheckpointWriterOptions& options);

  void Join();
  absl::Status Prepare(const Place& place, SavedState& saved,
                       SaveReport& report,
                       std::vector<BlockRange>& blocks) const;
  SaveJob MakeJob() const;

  const CheckpointWriterOptions options_;
  std::vector<Place> places_;  // By state.
  std::unique_ptr<collectives::Communicator> group_;
  std::thread thread_;
};

// Writes one checkpoint with a temporary writer.
absl::StatusOr<std::string> SaveCheckpoint(
    const CheckpointGroups& groups, const CheckpointWriterOptions& options,
    ShardedState& state, CheckpointMetadata metadata = {});

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_WRITER_H_
