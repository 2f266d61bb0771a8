// CheckpointWriter: checkpoints of a ShardedState, every rank its shard, while
// training goes on.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer, CheckpointWriter::Create(
//                        {.shard = &data_group},
//                        {.directory = "/ckpt", .keep = 3}));
//   // After a step; the state may step on at once:
//   TESSERA_ASSIGN_OR_RETURN(
//       PendingCheckpoint pending,
//       writer->Start(*state, {{"data", position}}));
//   ...
//   TESSERA_ASSIGN_OR_RETURN(const std::string path, pending.Wait());
//
// The ranks share a file system. A checkpoint becomes complete at once, after
// every rank has written and synced its file and rank 0 the manifest; until
// then, and if a rank fails, there is only what was there before, and every
// rank gets an error that names the rank and its reason.
//
// Create, Start and Save are collectives: all ranks call them in the same
// order, after the same step and between steps (gradients are not saved).
// Ranks agree over a group of their own, so that these neither wait for other
// traffic nor hold it up. One thread at a time.
#ifndef TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_WRITER_H_
#define TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "offload/tier/accounting.h"
#include "zero3/checkpoint/checkpoint_groups.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/save_job.h"
#include "zero3/checkpoint/save_report.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/state/sharded_state.h"

namespace tessera::zero3 {

struct CheckpointWriterOptions {
  std::string directory = "";
  // Complete checkpoints that stay, with the newest; older ones are removed
  // once it is complete. 0: all stay.
  int64_t keep = 0;
  // What snapshots of Start count against; null: against nothing.
  std::shared_ptr<offload::Accounting> snapshot_memory = nullptr;
  // How long ranks wait for each other: the slowest one's writing.
  absl::Duration timeout = absl::Minutes(30);
  // Elements under one checksum, at most: what is read for a single one.
  int64_t block_elements = int64_t{1} << 20;
  FileCalls* files = nullptr;  // Null: FileCalls::System().
};

// A checkpoint on its way. Copies are of the same one. Any thread may call.
class PendingCheckpoint {
 public:
  // The directory of the complete checkpoint, or why there is none; the same
  // error on every rank, unless the group itself broke. Where removal of old
  // ones failed, the checkpoint is complete all the same.
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

class CheckpointWriter {
 public:
  // InvalidArgument, on the rank that gave them and before it takes part, for
  // options that cannot be.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const CheckpointGroups& groups, const CheckpointWriterOptions& options);

  // Waits for the checkpoint on its way.
  ~CheckpointWriter();

  // Copies what this rank writes to memory (as many bytes as its file has) and
  // writes it on a thread of its own. Waits first until the checkpoint before
  // is done. What goes wrong, an exceeded budget too, is in the result of Wait,
  // on every rank.
  PendingCheckpoint Start(ShardedState& state, CheckpointMetadata metadata);

  // The same without a copy and on this thread.
  absl::StatusOr<std::string> Save(ShardedState& state,
                                   CheckpointMetadata metadata);

 private:
  CheckpointWriter(const CheckpointGroups& groups,
                   const CheckpointWriterOptions& options);

  void Join();
  absl::Status Prepare(ShardedState& state, CheckpointMetadata metadata,
                       SaveReport& report,
                       std::vector<BlockRange>& blocks) const;
  SaveJob MakeJob(const SaveReport& report) const;

  const CheckpointWriterOptions options_;
  const std::string part_;
  const topology::Rank shard_rank_;
  const int64_t shard_ranks_;
  const bool writes_;
  std::unique_ptr<collectives::Communicator> group_;
  std::thread thread_;
};

// One checkpoint, with a writer that lives as long.
absl::StatusOr<std::string> SaveCheckpoint(
    const CheckpointGroups& groups, const CheckpointWriterOptions& options,
    ShardedState& state, CheckpointMetadata metadata = {});

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_WRITER_H_
