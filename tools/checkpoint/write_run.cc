#include "tools/checkpoint/write_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/blocks/moe_mlp.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/cli/records.h"
#include "tools/model_files/llama_names.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/model/hidden_matrices.h"
#include "tools/train/model/moment_tensors.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/shard_file.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::tools {

namespace {

using model_files::LlamaPart;
using tensor_parallel::FusedPart;
using tensor_parallel::FusedPartition;
using tensor_parallel::IndexRange;
using tensor_parallel::Partition;
using train::HeldTensor;
using train::MeshSizes;

// Computes the part of each tensor that one tensor rank holds.
class TensorRank {
 public:
  static absl::StatusOr<TensorRank> Create(const model_files::ModelConfig& c,
                                           int64_t rank, int64_t ranks) {
    std::vector<FusedPart> qkv_parts = {
        tensor_parallel::HeadsPart(c.heads, c.head_size)};
    if (!c.IsLatent()) {
      TESSERA_ASSIGN_OR_RETURN(
          qkv_parts,
          tensor_parallel::QkvParts(c.heads, c.kv_heads, c.head_size, ranks));
    }
    TESSERA_ASSIGN_OR_RETURN(FusedPartition qkv,
                             FusedPartition::Create(qkv_parts, ranks));
    const auto mlp_parts = tensor_parallel::GatedMlpParts(c.intermediate);
    TESSERA_ASSIGN_OR_RETURN(FusedPartition mlp,
                             FusedPartition::Create(mlp_parts, ranks));
    TESSERA_ASSIGN_OR_RETURN(const Partition words,
                             Partition::Balanced(c.vocabulary, ranks));
    TESSERA_ASSIGN_OR_RETURN(
        const Partition units,
        Partition::Balanced(c.mixture.intermediate, ranks));
    const auto shared_parts =
        tensor_parallel::GatedMlpParts(c.mixture.shared_intermediate);
    TESSERA_ASSIGN_OR_RETURN(FusedPartition shared,
                             FusedPartition::Create(shared_parts, ranks));
    return TensorRank(c, rank, std::move(qkv), std::move(mlp), words, units,
                      std::move(shared));
  }

  // The rank's part of heads of `size` elements (latent attention).
  IndexRange HeadsOf(int64_t size) const {
    const IndexRange heads = qkv_.RangeOf(0, rank_);
    return {heads.begin / config_.head_size * size,
            heads.end / config_.head_size * size};
  }

  // `experts` are the experts that the rank holds.
  HeldTensor Of(LlamaPart part, int64_t layer, IndexRange experts) const {
    HeldTensor held = train::WholeTensor(
        train::RunTensorName(part, layer),
        model_files::MakeLlamaParameter(config_, part, layer).shape);
    switch (part) {
      case LlamaPart::kEmbedding:
      case LlamaPart::kHead:
        held.rows = {{words_.RangeOf(rank_)}};
        break;
      case LlamaPart::kQkv:
      case LlamaPart::kQkvBias:
        held.rows = RowsOf(qkv_);
        break;
      case LlamaPart::kSinks:
        held.rows = {{HeadsOf(1)}};
        break;
      case LlamaPart::kQueryUp:
        held.rows = {{HeadsOf(config_.head_size)}};
        break;
      case LlamaPart::kKvUp:
        held.rows = {{HeadsOf(config_.latent.nope + config_.latent.value)}};
        break;
      case LlamaPart::kGateUp:
        held.rows = RowsOf(mlp_);
        break;
      case LlamaPart::kAttentionOutput:
        held.columns = config_.IsLatent() ? HeadsOf(config_.latent.value)
                                          : qkv_.RangeOf(0, rank_);
        break;
      case LlamaPart::kDown:
        held.columns = mlp_.RangeOf(0, rank_);
        break;
      case LlamaPart::kExpertsGateUp:
      case LlamaPart::kExpertsGateUpBias:
        held.rows = tensor_parallel::ExpertRows(
            experts, 2, config_.mixture.intermediate, units_.RangeOf(rank_));
        break;
      case LlamaPart::kExpertsDown:
        held.rows = tensor_parallel::ExpertRows(experts, 1, config_.hidden,
                                                {0, config_.hidden});
        held.columns = units_.RangeOf(rank_);
        break;
      case LlamaPart::kExpertsDownBias:
        held.rows = tensor_parallel::ExpertRows(experts, 1, config_.hidden,
                                                {0, config_.hidden});
        held.rows[0].primary = rank_ == 0;
        break;
      case LlamaPart::kSharedGateUp:
        held.rows = RowsOf(shared_);
        break;
      case LlamaPart::kSharedDown:
        held.columns = shared_.RangeOf(0, rank_);
        break;
      case LlamaPart::kRouter:
      case LlamaPart::kRouterBias:
      case LlamaPart::kRouterLogitBias:
      case LlamaPart::kLatentDown:
      case LlamaPart::kAttentionNorm:
      case LlamaPart::kAttentionOutputBias:
      case LlamaPart::kQueryNorm:
      case LlamaPart::kKeyNorm:
      case LlamaPart::kAttentionOutputNorm:
      case LlamaPart::kMlpNorm:
      case LlamaPart::kMlpOutputNorm:
      case LlamaPart::kFinalNorm:
        held.rows[0].primary = rank_ == 0;
        break;
    }
    return held;
  }

 private:
  TensorRank(const model_files::ModelConfig& config, int64_t rank,
             FusedPartition qkv, FusedPartition mlp, const Partition& words,
             const Partition& units, FusedPartition shared)
      : config_(config),
        rank_(rank),
        qkv_(std::move(qkv)),
        mlp_(std::move(mlp)),
        words_(words),
        units_(units),
        shared_(std::move(shared)) {}

  // Among neighbours that hold the same replicated part, the first is its
  // primary holder.
  std::vector<tensor_parallel::ParameterRows> RowsOf(
      const FusedPartition& partition) const {
    std::vector<tensor_parallel::ParameterRows> rows;
    const auto ranges = partition.RangesOf(rank_);
    for (size_t i = 0; i < ranges.size(); ++i) {
      const FusedPart& part = partition.parts()[i];
      const int64_t sharers =
          part.replicated ? partition.ranks() / part.groups : 1;
      rows.push_back({ranges[i], rank_ % sharers == 0});
    }
    return rows;
  }

  model_files::ModelConfig config_;
  int64_t rank_;
  FusedPartition qkv_;
  FusedPartition mlp_;
  Partition words_;
  Partition units_;  // Hidden units of an expert.
  FusedPartition shared_;
};

bool IsOfExperts(LlamaPart part) {
  return part == LlamaPart::kExpertsGateUp ||
         part == LlamaPart::kExpertsGateUpBias ||
         part == LlamaPart::kExpertsDown || part == LlamaPart::kExpertsDownBias;
}

// The tensors of a part of the checkpoint.
struct Stage {
  std::vector<HeldTensor> tensors = {};
  std::vector<bool> is_frozen = {};  // By tensor.
  std::vector<int64_t> groups = {};  // By tensor; used together.
};

// The layers of a stage. A part of a checkpoint contains only its experts,
// everything else, or both.
struct StagePlace {
  IndexRange layers = {};
  bool is_first = false;
  bool is_last = false;
  IndexRange experts = {};
  bool has_experts = true;
  bool has_others = true;
};

Stage StageOf(const model_files::ModelConfig& config, const TensorRank& rank,
              const StagePlace& place) {
  Stage stage;
  int64_t group = 0;
  const auto add = [&](LlamaPart part, int64_t layer = -1) {
    if (!(IsOfExperts(part) ? place.has_experts : place.has_others)) return;
    stage.tensors.push_back(rank.Of(part, layer, place.experts));
    stage.is_frozen.push_back(part == LlamaPart::kRouterBias);
    stage.groups.push_back(group);
  };
  if (place.is_first) {
    add(LlamaPart::kEmbedding);
    ++group;
  }
  for (int64_t layer = place.layers.begin; layer < place.layers.end;
       ++layer, ++group) {
    for (const LlamaPart part : model_files::LayerPartsOf(config, layer)) {
      add(part, layer);
    }
  }
  if (!place.is_last) return stage;
  add(LlamaPart::kFinalNorm);
  // A tied head has its own copy of the table unless it is on the first stage.
  if (!config.tied_embeddings || !place.is_first) add(LlamaPart::kHead);
  return stage;
}

// Appends the moments of Adafactor.
void AddMoments(const model_files::ModelConfig& config, Stage& stage) {
  const size_t weights = stage.tensors.size();
  for (size_t i = 0; i < weights; ++i) {
    if (stage.is_frozen[i]) continue;
    const HeldTensor& weight = stage.tensors[i];
    train::MomentTensor moments = train::MomentsOf(
        {weight.name, weight.shape, weight.rows, weight.columns},
        train::MatricesOf(weight.name, weight.shape[0], config));
    stage.tensors.push_back({.name = std::move(moments.name),
                             .shape = {moments.size},
                             .rows = std::move(moments.rows)});
    stage.is_frozen.push_back(true);
    stage.groups.push_back(stage.groups[i]);
  }
}

absl::StatusOr<zero3::ModelParameters> ModelOf(const Stage& stage,
                                               const CheckpointPlan& plan) {
  zero3::ModelParameters::Builder builder;
  for (size_t i = 0; i < stage.tensors.size(); ++i) {
    const bool is_frozen = stage.is_frozen[i];
    builder.Add({.name = stage.tensors[i].name,
                 .shape = stage.tensors[i].held_shape(),
                 .dtype = is_frozen ? tensor_parallel::GradientDType(plan.dtype)
                                    : plan.dtype,
                 .trainable = !is_frozen,
                 .orthogonalized = plan.identity.optimizer == "muon" &&
                                   train::IsHiddenMatrix(stage.tensors[i].name),
                 .group = stage.groups[i]});
  }
  return builder.Build();
}

absl::StatusOr<PlannedPart> PlanPart(const CheckpointPlan& plan, Stage stage,
                                     int64_t ranks, std::string name) {
  if (plan.identity.optimizer == "adafactor") {
    AddMoments(plan.identity.model, stage);
  }
  TESSERA_ASSIGN_OR_RETURN(const zero3::ModelParameters model,
                           ModelOf(stage, plan));
  TESSERA_ASSIGN_OR_RETURN(
      zero3::StateLayout layout,
      zero3::StateLayout::Create(model, {.ranks = ranks,
                                         .alignment = std::max<int64_t>(
                                             plan.moments.format.block, 1)}));
  PlannedPart planned = {
      .part = {.name = std::move(name),
               .stage = plan.zero,
               .layout = std::move(layout),
               .moments = plan.moments.format,
               .moment_count = plan.moments.count,
               .loss_scale = plan.loss_scale,
               .steps_since_scale_change = plan.steps_since_scale_change},
      .tensors = std::move(stage.tensors)};
  zero3::CheckpointMetadata& metadata = planned.part.metadata;
  TESSERA_RETURN_IF_ERROR(train::AddTo(plan.identity, metadata));
  metadata[std::string(train::kTensorsKey)] =
      train::FormatHeldTensors(planned.tensors);
  train::AddTo(plan.progress, metadata);
  metadata[std::string(train::kMeshKey)] = plan.mesh.ToString();
  return planned;
}

}  // namespace

absl::StatusOr<std::vector<PlannedPart>> PlanParts(const CheckpointPlan& plan) {
  const model_files::ModelConfig& config = plan.identity.model;
  TESSERA_RETURN_IF_ERROR(config.Validate());
  if (plan.mesh.pp > config.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mesh of pp", plan.mesh.pp, " for ", config.layers,
                     " layers; give each pipeline rank one at least"));
  }
  const MeshSizes& mesh = plan.mesh;
  TESSERA_RETURN_IF_ERROR(mesh.Validate());
  const int64_t experts = config.mixture.experts;
  if (mesh.ep > 1 && (experts == 0 || experts % mesh.ep != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mesh of ep", mesh.ep, " for ", experts,
                     " experts; give an ep that divides them"));
  }
  TESSERA_ASSIGN_OR_RETURN(const Partition layers,
                           Partition::Balanced(config.layers, mesh.pp));
  std::vector<PlannedPart> parts;
  for (int64_t p = 0; p < mesh.pp; ++p) {
    for (int64_t t = 0; t < mesh.tp; ++t) {
      TESSERA_ASSIGN_OR_RETURN(const TensorRank rank,
                               TensorRank::Create(config, t, mesh.tp));
      StagePlace place = {.layers = layers.RangeOf(p),
                          .is_first = p == 0,
                          .is_last = p + 1 == mesh.pp,
                          .experts = {0, experts},
                          .has_experts = mesh.ep == 1};
      TESSERA_ASSIGN_OR_RETURN(
          PlannedPart part,
          PlanPart(plan, StageOf(config, rank, place), mesh.shard_ranks(),
                   train::PartName(t, p)));
      parts.push_back(std::move(part));
      if (mesh.ep == 1) continue;
      const int64_t own = experts / mesh.ep;
      place.has_experts = true;
      place.has_others = false;
      for (int64_t e = 0; e < mesh.ep; ++e) {
        place.experts = {e * own, (e + 1) * own};
        TESSERA_ASSIGN_OR_RETURN(
            PlannedPart of_experts,
            PlanPart(plan, StageOf(config, rank, place), mesh.edp(),
                     train::PartName(t, p, e)));
        parts.push_back(std::move(of_experts));
      }
    }
  }
  return parts;
}

namespace {

using zero3::BlockRange;
using zero3::StatePart;

constexpr int64_t kBlockElements = int64_t{1} << 20;  // Whole moment blocks.

class RunWriter {
 public:
  RunWriter(zero3::FileCalls& calls, const std::string& directory,
            const CheckpointPlan& plan, BlockSource source)
      : calls_(calls),
        plan_(plan),
        source_(source),
        directory_(calls, directory) {}

  absl::Status Write() {
    TESSERA_ASSIGN_OR_RETURN(std::vector<PlannedPart> parts, PlanParts(plan_));
    zero3::CheckpointManifest manifest = {.step = plan_.optimizer_steps,
                                          .world = plan_.mesh.world_size()};
    TESSERA_RETURN_IF_ERROR(directory_.Begin(manifest.step));
    absl::Status status = WriteParts(parts, manifest);
    if (status.ok()) status = Commit(manifest);
    if (!status.ok()) directory_.Discard(manifest.step).IgnoreError();
    return status;
  }

 private:
  absl::Status WriteParts(std::vector<PlannedPart>& parts,
                          zero3::CheckpointManifest& manifest) {
    for (PlannedPart& planned : parts) {
      for (int64_t rank = 0; rank < planned.part.layout.ranks(); ++rank) {
        TESSERA_ASSIGN_OR_RETURN(planned.part.files.emplace_back(),
                                 WriteFile(planned, topology::Rank(rank)));
      }
      manifest.parts.push_back(std::move(planned.part));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<zero3::CheckpointFile> WriteFile(const PlannedPart& planned,
                                                  topology::Rank rank) {
    const zero3::StateLayout& layout = planned.part.layout;
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<zero3::ShardWriter> writer,
        zero3::ShardWriter::Create(
            calls_,
            absl::StrCat(directory_.writing_path(plan_.optimizer_steps), "/",
                         zero3::ShardFileName(planned.part.name, rank.value())),
            {.step = plan_.optimizer_steps,
             .rank = rank.value(),
             .ranks = layout.ranks()}));
    for (const zero3::ModelParameter& parameter : layout.model().all()) {
      const zero3::Extent extent = layout.ExtentOf(rank, parameter.id);
      for (const StatePart part : zero3::kAllStateParts) {
        const auto format =
            zero3::StateFormatOf(parameter, plan_.moments, part);
        if (!format) continue;
        TESSERA_RETURN_IF_ERROR(WriteBlocks(
            planned.tensors[static_cast<size_t>(parameter.id.value())],
            {parameter.id, part, *format, extent.begin, extent.end}, *writer));
      }
    }
    return writer->Finish();
  }

  absl::Status WriteBlocks(const train::HeldTensor& held, const BlockRange& all,
                           zero3::ShardWriter& writer) {
    BlockRange block = all;
    for (; block.begin < all.end; block.begin = block.end) {
      block.end = std::min(block.begin + kBlockElements, all.end);
      bytes_.assign(static_cast<size_t>(block.bytes()), std::byte{0});
      TESSERA_RETURN_IF_ERROR(
          source_(held, block.part,
                  {block.format, block.begin, block.size(), bytes_.data()}));
      TESSERA_RETURN_IF_ERROR(writer.Add(block, bytes_));
    }
    return absl::OkStatus();
  }

  absl::Status Commit(const zero3::CheckpointManifest& manifest) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text,
                             zero3::FormatManifest(manifest));
    return directory_.Commit(manifest.step, text);
  }

  zero3::FileCalls& calls_;
  const CheckpointPlan& plan_;
  const BlockSource source_;
  zero3::CheckpointDirectory directory_;
  std::vector<std::byte> bytes_;
};

}  // namespace

absl::StatusOr<std::string> WriteRun(zero3::FileCalls& calls,
                                     const std::string& directory,
                                     const CheckpointPlan& plan,
                                     BlockSource source) {
  const std::string path =
      absl::StrCat(directory, "/", zero3::CheckpointName(plan.optimizer_steps));
  if (access(path.c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(
        QuotedPath(path), " already exists; give another directory"));
  }
  TESSERA_RETURN_IF_ERROR(RunWriter(calls, directory, plan, source).Write());
  return path;
}

namespace {

absl::StatusOr<std::unique_ptr<train::SavedRun>> OpenForReshard(
    const std::string& checkpoint) {
  TESSERA_ASSIGN_OR_RETURN(std::string found,
                           train::ResolveCheckpoint(checkpoint));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<train::SavedRun> saved,
                           train::SavedRun::Open(std::move(found)));
  if (saved->identity().lora.rank > 0) {
    return absl::UnimplementedError(absl::StrCat(
        saved->path(), " has LoRA adapters (",
        saved->identity().lora.ToString(),
        "), which are not resharded here; --resume of the trainer takes it on "
        "any mesh, and export adds the adapters to the weights"));
  }
  return saved;
}

absl::StatusOr<CheckpointPlan> ReshardPlan(const train::SavedRun& saved,
                                           const ReshardOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const train::SavedTensor* const embedding,
                           saved.Get(train::kEmbeddingTensor));
  const zero3::CheckpointPart& part = saved.manifest().parts[0];
  return CheckpointPlan{
      .identity = saved.identity(),
      .mesh = options.mesh,
      .zero = options.zero,
      .dtype = embedding->dtype,
      .moments = saved.moments(),
      .optimizer_steps = saved.manifest().step,
      .progress = saved.progress(),
      .loss_scale = part.loss_scale,
      .steps_since_scale_change = part.steps_since_scale_change};
}

// Counts the bytes of each pair of files.
class MoveCounter {
 public:
  explicit MoveCounter(const train::SavedRun& saved) : saved_(saved) {}

  absl::Status Add(const PlannedPart& planned) {
    const zero3::StateLayout& layout = planned.part.layout;
    for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
      to_ = zero3::ShardFileName(planned.part.name, rank);
      for (const zero3::Extent& extent :
           layout.ExtentsOf(topology::Rank(rank))) {
        TESSERA_RETURN_IF_ERROR(AddExtent(
            planned.tensors[static_cast<size_t>(extent.parameter.value())],
            extent));
      }
    }
    return absl::OkStatus();
  }

  std::vector<FileMove> Moves() const {
    std::vector<FileMove> moves;
    for (const auto& [files, bytes] : bytes_) {
      moves.push_back(
          {.from = files.second, .to = files.first, .bytes = bytes});
    }
    return moves;
  }

 private:
  absl::Status AddExtent(const HeldTensor& held, const zero3::Extent& extent) {
    TESSERA_ASSIGN_OR_RETURN(const train::SavedTensor* const tensor,
                             saved_.Get(held.name));
    for (const StatePart part : zero3::kAllStateParts) {
      const auto format = saved_.FormatOf(*tensor, part);
      if (!format) continue;
      TESSERA_ASSIGN_OR_RETURN(
          const std::vector<train::TensorCopy> copies,
          saved_.CopiesOf(*tensor, part, held, extent.begin, extent.end));
      for (const train::TensorCopy& copy : copies) {
        AddCopy(tensor->holders[copy.source], copy, *format);
      }
    }
    return absl::OkStatus();
  }

  void AddCopy(const train::SavedTensor::Holder& holder,
               const train::TensorCopy& copy,
               const zero3::StateFormat& format) {
    const zero3::CheckpointPart& source = saved_.manifest().parts[holder.part];
    for (int64_t row = 0; row < copy.rows; ++row) {
      const int64_t begin = copy.from + row * copy.from_width;
      for (const zero3::Extent& from :
           source.layout.Locate(holder.id, begin, begin + copy.columns)) {
        bytes_[{to_, zero3::ShardFileName(source.name, from.rank.value())}] +=
            format.BytesOf(from.size());
      }
    }
  }

  const train::SavedRun& saved_;
  std::string to_;
  std::map<std::pair<std::string, std::string>, int64_t> bytes_;  // To, from.
};

}  // namespace

absl::StatusOr<std::string> ReshardRun(const std::string& checkpoint,
                                       const std::string& directory,
                                       const ReshardOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const auto saved, OpenForReshard(checkpoint));
  TESSERA_ASSIGN_OR_RETURN(const CheckpointPlan plan,
                           ReshardPlan(*saved, options));
  return WriteRun(
      zero3::FileCalls::System(), directory, plan,
      [&](const train::HeldTensor& held, zero3::StatePart state,
          const zero3::StateArray& to) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const train::SavedTensor* const tensor,
                                 saved->Get(held.name));
        TESSERA_ASSIGN_OR_RETURN(const std::vector<train::TensorCopy> copies,
                                 saved->CopiesOf(*tensor, state, held, to.begin,
                                                 to.begin + to.capacity));
        return saved->Read(*tensor, state, copies, to);
      });
}

absl::StatusOr<std::vector<FileMove>> PlanReshard(
    const std::string& checkpoint, const ReshardOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const auto saved, OpenForReshard(checkpoint));
  TESSERA_ASSIGN_OR_RETURN(const CheckpointPlan plan,
                           ReshardPlan(*saved, options));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<PlannedPart> parts,
                           PlanParts(plan));
  MoveCounter counter(*saved);
  for (const PlannedPart& part : parts) {
    TESSERA_RETURN_IF_ERROR(counter.Add(part));
  }
  return counter.Moves();
}

void PrintMoves(std::span<const FileMove> moves, OutputFormat format,
                std::ostream& out) {
  if (format == OutputFormat::kText) out << "         bytes  from -> to\n";
  RecordPrinter printer(format, "", out);
  for (const auto& [from, to, bytes] : moves) {
    printer.Print({{"from", from}, {"to", to}, {"bytes", bytes}},
                  absl::StrFormat("%14d  %s -> %s\n", bytes, from, to));
  }
  printer.Finish();
}

}  // namespace tessera::tools
