// RunCheckpoints: checkpoints of a training run, written while it goes on, or
// from the state itself once nothing trains any more.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto checkpoints,
//       RunCheckpoints::Create(*rank, {.directory = "run/checkpoints",
//                                      .keep = 2, .identity = identity}));
//   ... rank->Step() ...
//   TESSERA_RETURN_IF_ERROR(checkpoints->Start());  // training may go on
//   ...
//   TESSERA_ASSIGN_OR_RETURN(const std::string path, checkpoints->Save());
//
// A checkpoint has a part for each pair of tensor and pipeline ranks, "tp0-pp1"
// with a file for each of its data ranks, and says of each part which rows and
// columns of which whole tensors it has: restore_run.h takes it up on any mesh.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "offload/tier/accounting.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/loop/train_rank.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::train {

struct RunCheckpointOptions {
  std::string directory = "";  // Made where it is missing.
  int64_t keep = 0;            // The newest ones; 0: all.
  RunIdentity identity = {};
  // How long ranks wait for the slowest one's writing.
  absl::Duration timeout = absl::Minutes(30);
  // What the copies count against; null: nothing.
  std::shared_ptr<offload::Accounting> snapshot_memory = nullptr;
  zero3::FileCalls* files = nullptr;  // Null: the system's.
};

class RunCheckpoints {
 public:
  // A collective of the rank's world, as Start and Save are; `rank` outlives
  // this.
  // InvalidArgument, on the rank that gave them, for options that cannot be.
  static absl::StatusOr<std::unique_ptr<RunCheckpoints>> Create(
      TrainRank& rank, const RunCheckpointOptions& options);

  // Of the state behind the last step: copies it, then writes in the
  // background. Waits for the checkpoint before, whose error this returns
  // where it has one that Wait has not; the new one is begun all the same.
  absl::Status Start();

  // Writes the state behind the last step on this thread, block by block and
  // without a copy: memory stays bounded by the largest block. Waits for the
  // checkpoint before as Start does. The path of the complete checkpoint, or
  // the error, which all ranks get alike.
  absl::StatusOr<std::string> Save();

  // The path of the last complete checkpoint once none is on its way, "" where
  // none was begun; or the error of the one that was on its way, which all
  // ranks get alike.
  absl::StatusOr<std::string> Wait();

  // Of the last one that Wait or Start saw complete; "" before.
  const std::string& last_path() const { return last_path_; }

 private:
  RunCheckpoints(TrainRank& rank, zero3::CheckpointMetadata metadata)
      : rank_(rank), metadata_(std::move(metadata)) {}

  zero3::CheckpointMetadata MetadataNow() const;

  TrainRank& rank_;
  const zero3::CheckpointMetadata metadata_;  // But for the steps.
  std::unique_ptr<zero3::CheckpointWriter> writer_;
  std::optional<zero3::PendingCheckpoint> pending_;
  std::string last_path_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_
