// Writes and restores checkpoints of a training run. They are written in the
// background from a copy while training continues, or directly from the state
// after the last step, and can be restored on any mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto checkpoints,
//       RunCheckpoints::Create(*rank, {.directory = "run/checkpoints",
//                                      .keep = 2, .identity = identity}));
//   ...  // rank->Step()
//   TESSERA_RETURN_IF_ERROR(checkpoints->Start());  // training may continue
//   ...
//   TESSERA_ASSIGN_OR_RETURN(const std::string path, checkpoints->Save());
//
//   TESSERA_RETURN_IF_ERROR(RestoreRun("run/checkpoints", identity, *rank));
//   rank->steps();  // the next step
//
// A checkpoint has a part for each pair of tensor and pipeline ranks,
// "tp0-pp1". A part has a file for each of its data ranks, and records which
// rows and columns of the whole tensors it holds. With expert parallelism the
// experts of each expert rank form a separate part, "tp0-pp1-ep2". With Shampoo
// each part has another one for the statistics of its matrices,
// "tp0-pp1-statistics".
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "offload/tier/accounting.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/step/train_rank.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::train {

// The name of a part: "tp0-pp1", or "tp0-pp1-ep2" for experts with a separate
// state.
inline std::string PartName(int64_t tensor_rank, int64_t pipeline_rank) {
  return absl::StrCat("tp", tensor_rank, "-pp", pipeline_rank);
}
inline std::string PartName(int64_t tensor_rank, int64_t pipeline_rank,
                            int64_t expert_rank) {
  return absl::StrCat(PartName(tensor_rank, pipeline_rank), "-ep", expert_rank);
}

inline constexpr std::string_view kStatisticsPart = "-statistics";

// The groups of each part of the rank's model (ShardedModel::parts).
std::vector<zero3::CheckpointGroups> CheckpointGroupsOf(TrainRank& rank);

// The metadata of a part that is the same in all checkpoints: its tensors and
// the mesh.
zero3::CheckpointMetadata MetadataOfPart(const TrainRank& rank,
                                         const ShardedModel::Part& part);

// The progress of a rank's run, with the learning rate of its next step.
RunProgress ProgressToSave(const TrainRank& rank);

struct RunCheckpointOptions {
  std::string directory = "";  // Created if it does not exist.
  int64_t keep = 0;            // Number of newest checkpoints; 0: all.
  bool keep_best = false;      // Also keeps the one with the best validation.
  RunIdentity identity = {};
  // How long ranks wait for the slowest one to write.
  absl::Duration timeout = absl::Minutes(30);
  // The account of the copies; null: no accounting.
  std::shared_ptr<offload::Accounting> snapshot_memory = nullptr;
  zero3::FileCalls* files = nullptr;  // Null: system calls.
};

class RunCheckpoints {
 public:
  // A collective of the rank's world, like Start and Save. `rank` must outlive
  // this. InvalidArgument, on the rank whose options are invalid.
  static absl::StatusOr<std::unique_ptr<RunCheckpoints>> Create(
      TrainRank& rank, const RunCheckpointOptions& options);

  // Waits for the previous checkpoint, copies the current state, and writes the
  // copy in the background. Returns the error of the previous checkpoint unless
  // Wait has returned it; the new checkpoint is started in any case.
  // `eval_loss` is the validation loss of the state, if it was measured.
  absl::Status Start(std::optional<double> eval_loss = {});

  // Waits for the previous checkpoint like Start, then writes the current state
  // on this thread, block by block and without a copy: the extra memory is
  // bounded by the largest block. Returns the path of the complete checkpoint,
  // or the same error on all ranks.
  absl::StatusOr<std::string> Save(std::optional<double> eval_loss = {});

  // Waits for the checkpoint that is being written. Returns the path of the
  // last complete checkpoint, "" if none was started, or the same error on all
  // ranks.
  absl::StatusOr<std::string> Wait();

  // How long the checkpoint of the last Start took, if it is complete and
  // nothing has waited for it; otherwise 0.
  absl::Duration write_time() const {
    return pending_ ? pending_->TimeTaken() : absl::ZeroDuration();
  }

  // CheckpointWriter::group_status.
  absl::Status group_status() const { return writer_->group_status(); }

  // The path of the last checkpoint that Wait or Start found complete; "" if
  // there is none yet.
  const std::string& last_path() const { return last_path_; }

 private:
  RunCheckpoints(TrainRank& rank,
                 std::vector<zero3::CheckpointMetadata> metadata)
      : rank_(rank), metadata_(std::move(metadata)) {}

  absl::StatusOr<std::vector<zero3::SavedState>> StatesNow(
      std::optional<double> eval_loss);

  TrainRank& rank_;
  // The metadata of each part, without the steps.
  const std::vector<zero3::CheckpointMetadata> metadata_;
  std::unique_ptr<zero3::CheckpointWriter> writer_;
  std::optional<zero3::PendingCheckpoint> pending_;
  std::string last_path_;
};

// Restores a checkpoint into a rank. The sizes of dp, pp, cp, tp and ep, the
// schedule, the ZeRO stage, and the layout and tiers of the state may all
// differ: each rank reads the elements that it owns from the files that contain
// them. Values, master weights, moments, the number of steps, the loss scale
// and, if the checkpoint has them, the scales of fp8 are restored exactly.
// Weights of another type are converted from the master
// weights of the checkpoint, or from its values if it has none; then the loss
// scale begins anew. Moments of a checkpoint without steps, which are zero,
// have any type.
//
// A collective of the rank's world, between steps. `path` is a checkpoint or a
// directory of checkpoints, in which rank 0 selects the newest complete one.
//
// Errors are the same on every rank and name the rank that failed. Without side
// effects: NotFound; InvalidArgument for a checkpoint of another run
// (CheckSameRun), for moments of another type, and if a block of 8-bit moments
// would be split; FailedPrecondition if ranks see different
// checkpoints; DataLoss if the manifest is damaged or parts are missing. If the
// files themselves are damaged (DataLoss), the state is partly restored:
// restore another checkpoint.
absl::Status RestoreRun(const std::string& path, const RunIdentity& identity,
                        TrainRank& rank);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_CHECKPOINTS_H_
