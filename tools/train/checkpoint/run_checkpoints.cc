#include "tools/train/checkpoint/run_checkpoints.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"
#include "offload/file/crc32c.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/saved_run.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/compare_models.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/state_blocks.h"

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
  TESSERA_ASSIGN_OR_RETURN(
      checkpoints->writer_,
      zero3::CheckpointWriter::Create(
          {.shard = rank.groups().shard,
           .replicas = rank.groups().replicas,
           .world = &rank.world(),
           .part = PartNameOf(rank)},
          {.directory = options.directory,
           .keep = options.keep,
           .keep_least = options.keep_best ? std::string(kEvalLossKey) : "",
           .snapshot_memory = options.snapshot_memory,
           .timeout = options.timeout,
           .files = options.files}));
  return checkpoints;
}

zero3::CheckpointMetadata RunCheckpoints::MetadataNow(
    std::optional<double> eval_loss) const {
  zero3::CheckpointMetadata metadata = metadata_;
  metadata[std::string(kStepsKey)] = absl::StrCat(rank_.steps());
  if (eval_loss) {
    // All digits: equal losses stay equal.
    metadata[std::string(kEvalLossKey)] = absl::StrFormat("%.17g", *eval_loss);
  }
  return metadata;
}

absl::Status RunCheckpoints::Start(std::optional<double> eval_loss) {
  const absl::Status before = Wait().status();
  pending_ = writer_->Start(rank_.state(), MetadataNow(eval_loss));
  return before;
}

absl::StatusOr<std::string> RunCheckpoints::Save(
    std::optional<double> eval_loss) {
  const absl::Status before = Wait().status();
  absl::StatusOr<std::string> path =
      writer_->Save(rank_.state(), MetadataNow(eval_loss));
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

namespace {

using zero3::StatePart;

// The slowest rank may be reading.
constexpr absl::Duration kPatience = absl::Minutes(30);

class Restoration {
 public:
  Restoration(const RunIdentity& identity, TrainRank& rank)
      : identity_(identity),
        rank_(rank),
        state_(rank.state()),
        moments_(state_.options().moments,
                 zero3::MomentCount(state_.options().optimizer,
                                    state_.options().sgd)) {}

  absl::Status Run(const std::string& path) {
    TESSERA_RETURN_IF_ERROR(Resolve(path));
    absl::Status ready = OpenRun();
    if (ready.ok()) ready = PlanReads();
    TESSERA_RETURN_IF_ERROR(
        collectives::AgreeOnStatus(rank_.world(), ready, kPatience));
    TESSERA_RETURN_IF_ERROR(AgreeOnCheckpoint());
    if (is_same_mesh_) {
      TESSERA_RETURN_IF_ERROR(
          zero3::LoadCheckpoint(saved_->path(),
                                {.shard = rank_.groups().shard,
                                 .replicas = rank_.groups().replicas,
                                 .world = &rank_.world(),
                                 .part = PartNameOf(rank_)},
                                state_)
              .status());
    } else {
      TESSERA_RETURN_IF_ERROR(
          collectives::AgreeOnStatus(rank_.world(), ReadAll(), kPatience));
      const zero3::CheckpointPart& part = saved_->manifest().parts[0];
      state_.scaler().Restore(part.loss_scale, part.steps_since_scale_change);
      TESSERA_RETURN_IF_ERROR(state_.FinishRestoring(saved_->manifest().step));
    }
    rank_.SetSteps(saved_->steps());
    return absl::OkStatus();
  }

 private:
  // The copies for one part of a parameter's state.
  struct ReadPlan {
    const SavedTensor* tensor = nullptr;
    zero3::Extent extent = {};
    StatePart part = StatePart::kValue;
    std::vector<TensorCopy> copies = {};
  };

  // Rank 0's choice, since a newer checkpoint may become complete meanwhile.
  absl::Status Resolve(const std::string& path) {
    absl::StatusOr<std::string> found = path;
    if (rank_.world().rank() == collectives::Rank(0)) {
      found = ResolveCheckpoint(path);
    }
    TESSERA_RETURN_IF_ERROR(
        collectives::AgreeOnStatus(rank_.world(), found.status(), kPatience));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<std::string> paths,
        collectives::ExchangeTexts(rank_.world(), *found, kPatience));
    path_ = paths[0];
    return absl::OkStatus();
  }

  absl::Status OpenRun() {
    TESSERA_ASSIGN_OR_RETURN(saved_, SavedRun::Open(path_));
    return Annotate(
        CheckSameRun(saved_->identity(), saved_->steps(), identity_), path_);
  }

  // True if the part with this rank's name is identical, so that each rank can
  // read its own file.
  bool HasSamePart() const {
    const auto found = saved_->manifest().Find(PartNameOf(rank_));
    if (!found.ok() || !zero3::CompareModels(**found, state_.layout().model(),
                                             state_.options().moments)
                            .ok()) {
      return false;
    }
    for (const tensor_parallel::Parameter* parameter :
         rank_.model().parameters()) {
      const HeldTensor mine = HeldTensorOf(*parameter);
      const auto saved = saved_->tensors().find(mine.name);
      if (saved == saved_->tensors().end()) return false;
      const auto& holders = saved->second.holders;
      const auto same = [&](const SavedTensor::Holder& holder) {
        return &saved_->manifest().parts[holder.part] == *found &&
               HoldSame(holder.held, mine);
      };
      if (std::none_of(holders.begin(), holders.end(), same)) return false;
    }
    return true;
  }

  absl::Status PlanReads() {
    const auto parameters = rank_.model().parameters();
    for (const zero3::ModelParameter& parameter :
         state_.layout().model().all()) {
      const HeldTensor held =
          HeldTensorOf(*parameters[static_cast<size_t>(parameter.id.value())]);
      TESSERA_ASSIGN_OR_RETURN(const SavedTensor* const tensor,
                               saved_->Get(held.name));
      for (const StatePart part : zero3::kAllStateParts) {
        TESSERA_RETURN_IF_ERROR(PlanRead(parameter, *tensor, held, part),
                                Annotate(_, saved_->path()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status PlanRead(const zero3::ModelParameter& parameter,
                        const SavedTensor& tensor, const HeldTensor& held,
                        StatePart part) {
    const auto here = zero3::StateFormatOf(parameter, moments_, part);
    const auto there = saved_->FormatOf(tensor, part);
    if (tensor.dtype != parameter.dtype() || (here && here != there)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", zero3::StatePartName(part), " of ", Quoted(tensor.name),
          " is ", there ? there->ToString() : "missing",
          " in the checkpoint and ", here ? here->ToString() : "missing",
          " here; give the type of weights and moments that it was saved "
          "with"));
    }
    const zero3::Extent extent =
        state_.layout().ExtentOf(state_.rank(), parameter.id);
    if (!here || extent.size() == 0) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<TensorCopy> copies,
        saved_->CopiesOf(tensor, part, held, extent.begin, extent.end));
    plans_.push_back({&tensor, extent, part, std::move(copies)});
    return absl::OkStatus();
  }

  // Checks that all ranks have read the same manifest, and whether all have
  // their part.
  absl::Status AgreeOnCheckpoint() {
    TESSERA_ASSIGN_OR_RETURN(const std::string manifest,
                             zero3::FormatManifest(saved_->manifest()));
    const std::string mine =
        absl::StrCat("step ", saved_->manifest().step, " with a manifest of ",
                     manifest.size(), " bytes and the checksum ",
                     offload::Crc32c(std::as_bytes(std::span(manifest))));
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<std::string> texts,
        collectives::ExchangeTexts(rank_.world(), mine, kPatience));
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank] == texts[0]) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("ranks see different checkpoints at ", path_,
                       ": rank 0 ", texts[0], ", rank ", rank, " ", texts[rank],
                       "; give a directory that all ranks share"));
    }
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<std::string> same,
        collectives::ExchangeTexts(
            rank_.world(), HasSamePart() ? "same" : "other", kPatience));
    is_same_mesh_ =
        std::all_of(same.begin(), same.end(),
                    [](const std::string& text) { return text == "same"; });
    return absl::OkStatus();
  }

  absl::Status ReadAll() {
    for (const ReadPlan& plan : plans_) {
      TESSERA_ASSIGN_OR_RETURN(
          zero3::OpenPart open,
          zero3::OpenPart::Open(state_, plan.extent.parameter, plan.part));
      absl::Status status =
          saved_->Read(*plan.tensor, plan.part, plan.copies, open.array());
      status.Update(open.Close(/*changed=*/true));
      TESSERA_RETURN_IF_ERROR(status);
    }
    return state_.optimizer().Settle();
  }

  const RunIdentity& identity_;
  TrainRank& rank_;
  zero3::ShardedState& state_;
  const zero3::MomentKinds moments_;
  std::string path_;
  std::unique_ptr<SavedRun> saved_;
  std::vector<ReadPlan> plans_;
  bool is_same_mesh_ = false;
};

}  // namespace

absl::Status RestoreRun(const std::string& path, const RunIdentity& identity,
                        TrainRank& rank) {
  return Restoration(identity, rank).Run(path);
}

}  // namespace tessera::train
