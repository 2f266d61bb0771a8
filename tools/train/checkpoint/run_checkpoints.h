// PartNameOf: what the part of a checkpoint is called that a rank has.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "offload/tier/accounting.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/loop/train_rank.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::train {

// "tp0-pp1".
inline std::string PartName(int64_t tensor_rank, int64_t pipeline_rank) {
  return absl::StrCat("tp", tensor_rank, "-pp", pipeline_rank);
}

inline std::string PartNameOf(const TrainRank& rank) {
  return PartName(rank.groups().tp->rank().value(),
                  rank.groups().pp->rank().value());
}

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

// RestoreRun: a rank of a run takes up a checkpoint of any other mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(auto rank, TrainRank::Create(...));
//   TESSERA_RETURN_IF_ERROR(RestoreRun("run/checkpoints", identity, *rank));
//   rank->steps();  // the next step
//
// The sizes of dp, pp, cp and tp, the schedule, the ZeRO stage, the layout and
// where state lives may all differ: each rank reads the elements that it owns
// from whichever files have them. Values, master weights, moments, the number
// of steps and the loss scale become those that were saved, in every bit.

// A collective of the rank's world, between steps. `path` is a checkpoint or a
// directory of them, of which rank 0's newest complete one is taken.
//
// Errors are the same on every rank and name the one that met them. With
// nothing changed: NotFound; InvalidArgument where it is a checkpoint of
// another run (CheckSameRun), of weights or moments of another type, or where
// 8-bit moments would be cut inside a block; FailedPrecondition where ranks
// see different checkpoints; DataLoss where the manifest is damaged or parts
// are missing. DataLoss of the files themselves leaves the state partly
// restored: restore another checkpoint.
absl::Status RestoreRun(const std::string& path, const RunIdentity& identity,
                        TrainRank& rank);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_
