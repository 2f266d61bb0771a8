#include "tools/train/checkpoint/run_checkpoints.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dtype/convert.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"
#include "offload/file/crc32c.h"
#include "tensor_parallel/layers/lora.h"
#include "tools/train/checkpoint/fp8_scales.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/model/moment_tensors.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/compare_models.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/state/loss_scaler.h"

namespace tessera::train {

std::vector<zero3::CheckpointGroups> CheckpointGroupsOf(TrainRank& rank) {
  const TrainRank::Groups& groups = rank.groups();
  const int64_t tp = groups.tp->rank().value();
  const int64_t pp = groups.pp->rank().value();
  const zero3::CheckpointGroups dense = {.shard = groups.shard,
                                         .replicas = groups.replicas,
                                         .world = &rank.world(),
                                         .part = PartName(tp, pp)};
  std::vector<zero3::CheckpointGroups> parts;
  for (const ShardedModel::Part& part : rank.model().parts()) {
    zero3::CheckpointGroups& own = parts.emplace_back(dense);
    if (part.of_experts) {
      own = {.shard = groups.edp,
             .world = &rank.world(),
             .part = PartName(tp, pp, groups.ep->rank().value())};
    }
    if (part.is_statistics) own.part += kStatisticsPart;
  }
  return parts;
}

zero3::CheckpointMetadata MetadataOfPart(const TrainRank& rank,
                                         const ShardedModel::Part& part) {
  std::vector<HeldTensor> tensors;
  for (const tensor_parallel::Parameter* parameter : part.parameters) {
    tensors.push_back(HeldTensorOf(*parameter));
  }
  return {{std::string(kTensorsKey), FormatHeldTensors(tensors)},
          {std::string(kMeshKey), rank.options().mesh.ToString()}};
}

RunProgress ProgressToSave(const TrainRank& rank) {
  RunProgress progress = rank.progress();
  progress.learning_rate = rank.options().learning_rate.At(rank.steps());
  return progress;
}

absl::StatusOr<std::unique_ptr<RunCheckpoints>> RunCheckpoints::Create(
    TrainRank& rank, const RunCheckpointOptions& options) {
  std::vector<zero3::CheckpointMetadata> metadata;
  for (const ShardedModel::Part& part : rank.model().parts()) {
    TESSERA_RETURN_IF_ERROR(AddTo(
        options.identity, metadata.emplace_back(MetadataOfPart(rank, part))));
  }
  std::unique_ptr<RunCheckpoints> checkpoints(
      new RunCheckpoints(rank, std::move(metadata)));
  TESSERA_ASSIGN_OR_RETURN(
      checkpoints->writer_,
      zero3::CheckpointWriter::Create(
          CheckpointGroupsOf(rank),
          {.directory = options.directory,
           .keep = options.keep,
           .keep_least = options.keep_best ? std::string(kEvalLossKey) : "",
           .snapshot_memory = options.snapshot_memory,
           .timeout = options.timeout,
           .files = options.files}));
  return checkpoints;
}

absl::StatusOr<std::vector<zero3::SavedState>> RunCheckpoints::StatesNow(
    std::optional<double> eval_loss) {
  std::string scales;
  if (rank_.groups().tp->rank() == collectives::Rank(0)) {
    TESSERA_ASSIGN_OR_RETURN(scales, FormatFp8Scales(rank_));
  }
  const RunProgress progress = ProgressToSave(rank_);
  std::vector<zero3::SavedState> states;
  for (size_t i = 0; i < metadata_.size(); ++i) {
    zero3::CheckpointMetadata metadata = metadata_[i];
    AddTo(progress, metadata);
    if (eval_loss) {
      // With all digits, so that equal losses stay equal.
      metadata[std::string(kEvalLossKey)] =
          absl::StrFormat("%.17g", *eval_loss);
    }
    zero3::ShardedState& state = *rank_.model().parts()[i].state;
    if (&state == &rank_.state() && !scales.empty()) {
      metadata[std::string(kFp8ScalesKey)] = scales;
    }
    states.push_back({state, std::move(metadata)});
  }
  return states;
}

absl::Status RunCheckpoints::Start(std::optional<double> eval_loss) {
  const absl::Status before = Wait().status();
  TESSERA_ASSIGN_OR_RETURN(auto states, StatesNow(eval_loss));
  pending_ = writer_->Start(std::move(states));
  return before;
}

absl::StatusOr<std::string> RunCheckpoints::Save(
    std::optional<double> eval_loss) {
  const absl::Status before = Wait().status();
  TESSERA_ASSIGN_OR_RETURN(auto states, StatesNow(eval_loss));
  absl::StatusOr<std::string> path = writer_->Save(std::move(states));
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

using zero3::StateArray;
using zero3::StatePart;

// The slowest rank may be reading.
constexpr absl::Duration kPatience = absl::Minutes(30);

class Restoration {
 public:
  Restoration(const RunIdentity& identity, TrainRank& rank)
      : identity_(identity),
        rank_(rank),
        parts_(rank.model().parts()),
        groups_(CheckpointGroupsOf(rank)),
        moments_(zero3::MomentsOf(rank.state())) {}

  absl::Status Run(const std::string& path) {
    TESSERA_RETURN_IF_ERROR(Resolve(path));
    absl::Status ready = OpenRun();
    if (ready.ok()) ready = PlanReads();
    if (ready.ok()) {
      ready = Annotate(PlanFp8Scales(), saved_->path());
    }
    TESSERA_RETURN_IF_ERROR(
        collectives::AgreeOnStatus(rank_.world(), ready, kPatience));
    TESSERA_RETURN_IF_ERROR(AgreeOnCheckpoint());
    if (is_same_mesh_) {
      for (size_t i = 0; i < parts_.size(); ++i) {
        TESSERA_RETURN_IF_ERROR(
            zero3::LoadCheckpoint(saved_->path(), groups_[i], *parts_[i].state)
                .status());
      }
    } else {
      TESSERA_RETURN_IF_ERROR(
          collectives::AgreeOnStatus(rank_.world(), ReadAll(), kPatience));
      const zero3::CheckpointPart& part = saved_->manifest().parts[0];
      for (const ShardedModel::Part& own : parts_) {
        if (!is_converted_) {
          own.state->scaler().Restore(part.loss_scale,
                                      part.steps_since_scale_change);
        }
        TESSERA_RETURN_IF_ERROR(
            own.state->FinishRestoring(saved_->manifest().step));
      }
    }
    // A constant scale comes from the settings, not from the checkpoint.
    const zero3::LossScaleOptions& scaling = rank_.options().state.loss_scale;
    if (!scaling.dynamic) {
      for (const ShardedModel::Part& own : parts_) {
        own.state->scaler().Restore(scaling.initial, 0);
      }
    }
    TESSERA_RETURN_IF_ERROR(RestoreFp8Scales(fp8_scales_, rank_));
    rank_.SetProgress(saved_->progress());
    return absl::OkStatus();
  }

 private:
  // The copies for one part of a parameter's state.
  struct ReadPlan {
    zero3::ShardedState* state = nullptr;
    const SavedTensor* tensor = nullptr;
    zero3::Extent extent = {};
    StatePart part = StatePart::kValue;
    StatePart source = StatePart::kValue;  // The part of the checkpoint.
    std::vector<TensorCopy> copies = {};
  };

  // Uses rank 0's choice, since a newer checkpoint may become complete
  // meanwhile.
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

  // True if the parts with this rank's names are identical, so that each rank
  // can read its own files.
  bool HasSameParts() const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!HasSamePart(parts_[i], groups_[i].part)) return false;
    }
    return true;
  }
  bool HasSamePart(const ShardedModel::Part& own,
                   const std::string& name) const {
    const auto found = saved_->manifest().Find(name);
    if (!found.ok() ||
        !zero3::CompareModels(**found, own.state->layout().model(),
                              zero3::MomentsOf(*own.state))
             .ok()) {
      return false;
    }
    for (const tensor_parallel::Parameter* parameter : own.parameters) {
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
    for (const ShardedModel::Part& part : parts_) {
      for (const zero3::ModelParameter& parameter :
           part.state->layout().model().all()) {
        const auto id = static_cast<size_t>(parameter.id.value());
        const HeldTensor held = HeldTensorOf(*part.parameters[id]);
        // New adapters may begin on weights that were trained without adapters.
        if (tensor_parallel::IsLoraFactor(held.name) &&
            saved_->identity().lora.rank == 0) {
          continue;
        }
        // The moments of a new state are zero already.
        if (IsMoments(held.name) && saved_->has_zero_moments()) continue;
        TESSERA_ASSIGN_OR_RETURN(const SavedTensor* const tensor,
                                 saved_->Get(held.name));
        for (const StatePart of_state : zero3::kAllStateParts) {
          TESSERA_RETURN_IF_ERROR(
              PlanRead(*part.state, parameter, *tensor, held, of_state),
              Annotate(_, saved_->path()));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status PlanFp8Scales() {
    TESSERA_ASSIGN_OR_RETURN(fp8_scales_,
                             Fp8ScalesFor(rank_, saved_->fp8_scales()));
    return absl::OkStatus();
  }

  absl::Status PlanRead(zero3::ShardedState& state,
                        const zero3::ModelParameter& parameter,
                        const SavedTensor& tensor, const HeldTensor& held,
                        StatePart part) {
    const auto here = zero3::StateFormatOf(parameter, moments_, part);
    const zero3::Extent extent =
        state.layout().ExtentOf(state.rank(), parameter.id);
    if (!here) return absl::OkStatus();
    const bool is_weight =
        part == StatePart::kValue || part == StatePart::kMaster;
    StatePart source = part;
    if (is_weight && tensor.dtype != parameter.dtype()) {
      // Weights of another type are converted from the most precise ones.
      const bool has_master =
          saved_->FormatOf(tensor, StatePart::kMaster).has_value();
      source = has_master ? StatePart::kMaster : StatePart::kValue;
      is_converted_ = true;
    } else if (const auto there = saved_->FormatOf(tensor, part);
               here != there) {
      // The moments of a new state are zero already.
      if (!is_weight && saved_->has_zero_moments()) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", zero3::StatePartName(part), " of ", Quoted(tensor.name),
          " is ", there ? there->ToString() : "missing",
          " in the checkpoint and ", here->ToString(),
          " here; give the --moments and --optimizer that it was saved with"));
    }
    if (extent.size() == 0) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<TensorCopy> copies,
        saved_->CopiesOf(tensor, source, held, extent.begin, extent.end));
    plans_.push_back(
        {&state, &tensor, extent, part, source, std::move(copies)});
    return absl::OkStatus();
  }

  // Reads the weights of another type, and converts them.
  absl::Status ReadConverted(const ReadPlan& plan, const StateArray& to) {
    const auto format = saved_->FormatOf(*plan.tensor, plan.source);
    const auto count = static_cast<size_t>(plan.extent.size());
    const auto from_width = static_cast<size_t>(SizeInBytes(format->dtype));
    const auto width = static_cast<size_t>(SizeInBytes(to.format.dtype));
    converted_.resize(count * from_width);
    TESSERA_RETURN_IF_ERROR(saved_->Read(
        *plan.tensor, plan.source, plan.copies,
        {*format, plan.extent.begin, plan.extent.size(), converted_.data()}));
    const auto begin = static_cast<size_t>(plan.extent.begin - to.begin);
    return Convert(format->dtype, converted_, to.format.dtype,
                   {to.bytes + begin * width, count * width});
  }

  // Checks that all ranks have read the same manifest, and finds out whether
  // every rank has its own part.
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
            rank_.world(), HasSameParts() ? "same" : "other", kPatience));
    is_same_mesh_ =
        std::all_of(same.begin(), same.end(),
                    [](const std::string& text) { return text == "same"; });
    return absl::OkStatus();
  }

  absl::Status ReadAll() {
    for (const ReadPlan& plan : plans_) {
      TESSERA_ASSIGN_OR_RETURN(
          zero3::OpenPart open,
          zero3::OpenPart::Open(*plan.state, plan.extent.parameter, plan.part));
      const StateArray to = open.array();
      const bool is_same =
          saved_->FormatOf(*plan.tensor, plan.source) == to.format;
      absl::Status status =
          is_same ? saved_->Read(*plan.tensor, plan.source, plan.copies, to)
                  : ReadConverted(plan, to);
      status.Update(open.Close(/*changed=*/true));
      TESSERA_RETURN_IF_ERROR(status);
    }
    for (const ShardedModel::Part& part : parts_) {
      TESSERA_RETURN_IF_ERROR(part.state->optimizer().Settle());
    }
    return absl::OkStatus();
  }

  const RunIdentity& identity_;
  TrainRank& rank_;
  const std::span<const ShardedModel::Part> parts_;
  const std::vector<zero3::CheckpointGroups> groups_;
  const zero3::MomentKinds moments_;
  std::string path_;
  std::unique_ptr<SavedRun> saved_;
  std::vector<ReadPlan> plans_;
  std::map<int64_t, std::string> fp8_scales_;
  bool is_same_mesh_ = false;
  bool is_converted_ = false;  // The weights are of another type.
  std::vector<std::byte> converted_;
};

}  // namespace

absl::Status RestoreRun(const std::string& path, const RunIdentity& identity,
                        TrainRank& rank) {
  return Restoration(identity, rank).Run(path);
}

}  // namespace tessera::train
