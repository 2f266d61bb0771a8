#include "tools/train/checkpoint/run_checkpoints.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/part_name.h"
#include "tools/train/checkpoint/saved_run.h"

namespace tessera::train {

absl::StatusOr<std::unique_ptr<RunCheckpoints>> RunCheckpoints::Create(
    TrainRank& rank, const RunCheckpointOptions& options) {
  zero3::CheckpointMetadata metadata;
  TESSERA_RETURN_IF_ERROR(AddTo(options.identity, metadata));
  std::vector<HeldTensor> tensors;
  for (const tensor_parallel::Parameter* parameter :
       rank.model().parameters()) {
    tensors.push_back(HeldTensorOf(*parameter));
  }
  metadata[std::string(kTensorsKey)] = FormatHeldTensors(tensors);
  metadata[std::string(kMeshKey)] = rank.options().mesh.ToString();
  std::unique_ptr<RunCheckpoints> checkpoints(
      new RunCheckpoints(rank, std::move(metadata)));
  TESSERA_ASSIGN_OR_RETURN(checkpoints->writer_,
                           zero3::CheckpointWriter::Create(
                               {.shard = rank.groups().shard,
                                .replicas = rank.groups().replicas,
                                .world = &rank.world(),
                                .part = PartNameOf(rank)},
                               {.directory = options.directory,
                                .keep = options.keep,
                                .snapshot_memory = options.snapshot_memory,
                                .timeout = options.timeout,
                                .files = options.files}));
  return checkpoints;
}

zero3::CheckpointMetadata RunCheckpoints::MetadataNow() const {
  zero3::CheckpointMetadata metadata = metadata_;
  metadata[std::string(kStepsKey)] = absl::StrCat(rank_.steps());
  return metadata;
}

absl::Status RunCheckpoints::Start() {
  const absl::Status before = Wait().status();
  pending_ = writer_->Start(rank_.state(), MetadataNow());
  return before;
}

absl::StatusOr<std::string> RunCheckpoints::Save() {
  const absl::Status before = Wait().status();
  absl::StatusOr<std::string> path =
      writer_->Save(rank_.state(), MetadataNow());
  if (path.ok()) last_path_ = *path;
  TESSERA_RETURN_IF_ERROR(before);
  return path;
}

absl::StatusOr<std::string> RunCheckpoints::Wait() {
  if (!pending_) return last_path_;
  absl::StatusOr<std::string> path = pending_->Wait();
  pending_.reset();
  if (path.ok()) last_path_ = *path;
  return path;
}

}  // namespace tessera::train
