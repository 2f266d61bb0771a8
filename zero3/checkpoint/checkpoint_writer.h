// CheckpointWriter writes checkpoints of a ShardedState while training
// continues: each rank writes its shard. Also the snapshots, reports and jobs
// that it is made of.
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
#include "base/steady_now.h"
#include "collectives/communicator.h"
#include "offload/tier/accounting.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// The ranks that write or read a checkpoint together. Not owned.
//
//   // Data parallel:
//   {.shard = &data_group}
//   // Hybrid sharding:
//   {.shard = &shard_group, .replicas = &replica_group, .world = &world}
//   // With tensor and pipeline parallel ranks:
//   {.shard = &data_group, .world = &world, .part = "tp1-pp0"}
struct CheckpointGroups {
  // The shard group of the state (ShardedStateGroups).
  collectives::Communicator* shard = nullptr;
  // The ranks with the same shard in other groups that have the same state; the
  // first of them writes.
  collectives::Communicator* replicas = nullptr;
  // All ranks of the checkpoint; null: the ranks of `shard`.
  collectives::Communicator* world = nullptr;
  // The name of the part of the model that this shard group holds.
  std::string part = "";
};

// A copy of blocks of a state, so that the state can change while they are
// written.
//
//   TESSERA_ASSIGN_OR_RETURN(Snapshot snapshot,
//                            Snapshot::Take(state, blocks, accounting));
//   TESSERA_RETURN_IF_ERROR(snapshot.ForEachBlock(write));  // on any thread
class Snapshot {
 public:
  // The snapshot counts as buffers against `accounting` (null: not counted)
  // while it exists. Does not wait for the state's device. ResourceExhausted if
  // memory is exhausted.
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

// A rank's report about its shard of a checkpoint; the ranks exchange them.
struct SaveReport {
  int64_t rank = 0;  // In the world. Not a part of the text.
  absl::Status status = absl::OkStatus();
  int64_t step = 0;
  // The shard of this rank: its part, and its index in that part.
  std::string part = "";
  int64_t shard_rank = 0;
  int64_t shard_ranks = 1;
  // True if the rank writes the shard: it is the first of the replicas.
  bool writes = true;
  CheckpointFile file = {};  // Set once the file is written.
  // The result of FormatPart, from the rank that writes shard 0.
  std::string description = "";

  friend bool operator==(const SaveReport&, const SaveReport&) = default;
};

std::string FormatReport(const SaveReport& report);
absl::StatusOr<SaveReport> ParseReport(std::string_view text);

// The report about this rank's shard of `state` before it is written, with a
// description on every rank.
absl::StatusOr<SaveReport> DescribeShard(const CheckpointGroups& groups,
                                         ShardedState& state,
                                         CheckpointMetadata metadata);

// OK if all ranks are at the same step and each shard of each part is written
// once; a rank has one report per state. Otherwise FailedPrecondition, with the
// rank and the remedy.
absl::Status CheckReports(const std::vector<SaveReport>& reports);

// The manifest of the files that `world` ranks wrote. Preconditions:
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
    // The report so far. A rank with an error still participates, so that all
    // ranks receive the error.
    SaveReport report = {};
    // Passes each block of this rank's file to the callback. Only called if the
    // rank writes.
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
  // The number of complete checkpoints to keep, including the newest; older
  // ones are removed after the newest is committed. 0: keep all.
  int64_t keep = 0;
  // A key of metadata: the complete checkpoint with the smallest number at this
  // key is kept in addition (CheckpointDirectory::Prune). "": no such
  // checkpoint.
  std::string keep_least = "";
  // Counts the snapshots of Start; null: they are not counted.
  std::shared_ptr<offload::Accounting> snapshot_memory = nullptr;
  // The timeout of ranks that wait for each other; it must cover the writing
  // time of the slowest rank.
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
  // The directory of the complete checkpoint, or the reason for the failure:
  // the same error on every rank, unless the group itself failed. On an error
  // from the removal of old checkpoints, the new one is complete nevertheless.
  absl::StatusOr<std::string> Wait() const;
  bool IsDone() const;
  // The time from Start until it was done; 0 before.
  absl::Duration TimeTaken() const;

 private:
  friend class CheckpointWriter;
  struct Outcome {
    void Set(absl::StatusOr<std::string> value);

    const absl::Duration begin = SteadyNow();
    std::mutex mutex;
    std::condition_variable is_set;
    absl::Duration time_taken;
    std::optional<absl::StatusOr<std::string>> result;
  };
  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

// A state to save, with its metadata. The state is not owned.
struct SavedState {
  ShardedState& state;
  CheckpointMetadata metadata = {};
};

// Example:
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
// The ranks share a file system. A checkpoint is committed atomically, after
// every rank has written and synced its file and rank 0 the manifest. If a rank
// fails, the directory is unchanged, and every rank gets an error that names
// the rank and the reason.
//
// Create, Start and Save are collectives: all ranks call them in the same
// order, after the same step and between steps (gradients are not saved). They
// communicate over a separate group, independent of other traffic. One thread
// at a time.
//
// A model whose state is several ShardedStates (parameters that are sharded
// over different groups) has a part for each state, with one file per rank of
// the part:
//
//   const CheckpointGroups groups[] = {
//       {.shard = &data, .world = &world, .part = "dense"},
//       {.shard = &edp, .world = &world, .part = "experts-ep0"}};
//   TESSERA_ASSIGN_OR_RETURN(auto writer,
//                            CheckpointWriter::Create(groups, options));
//   writer->Start({{*dense, metadata}, {*experts, other_metadata}});
class CheckpointWriter {
 public:
  // One element of `groups` per state, all with the same world. InvalidArgument
  // for invalid options, only on the rank that passed them and before it
  // participates.
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
  // writes it on a separate thread. First waits until the previous checkpoint
  // is done. Wait returns all errors, including an exceeded budget, on every
  // rank.
  PendingCheckpoint Start(std::vector<SavedState> states);
  PendingCheckpoint Start(ShardedState& state, CheckpointMetadata metadata) {
    return Start({{state, std::move(metadata)}});
  }

  // OK while the errors of checkpoints are the same on all ranks.
  absl::Status group_status() const { return group_->status(); }

  // Writes the checkpoint without a copy, on this thread.
  absl::StatusOr<std::string> Save(std::vector<SavedState> states);
  absl::StatusOr<std::string> Save(ShardedState& state,
                                   CheckpointMetadata metadata) {
    return Save({{state, std::move(metadata)}});
  }

 private:
  CheckpointWriter(std::span<const CheckpointGroups> groups,
                   const CheckpointWriterOptions& options);

  void Join();
  absl::Status Prepare(SavedState& saved, SaveReport& report,
                       std::vector<BlockRange>& blocks) const;
  SaveJob MakeJob() const;

  const CheckpointWriterOptions options_;
  std::vector<SaveReport> places_;  // By state: the shards of this rank.
  std::unique_ptr<collectives::Communicator> group_;
  std::thread thread_;
};

// Writes one checkpoint with a temporary writer.
absl::StatusOr<std::string> SaveCheckpoint(
    const CheckpointGroups& groups, const CheckpointWriterOptions& options,
    ShardedState& state, CheckpointMetadata metadata = {});

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_WRITER_H_
