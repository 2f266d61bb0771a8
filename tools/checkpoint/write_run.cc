#include "tools/checkpoint/write_run.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device/host_device.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "base/tensor/counting_memory.h"
#include "collectives/communicator.h"
#include "collectives/counting/counting_engine.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/cli/records.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/model/hidden_matrices.h"
#include "tools/train/model/llama_stage.h"
#include "tools/train/model/moment_tensors.h"
#include "tools/train/model/shampoo_blocks.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/shard_file.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::tools {

namespace {

using collectives::Communicator;
using tensor_parallel::IndexRange;
using tensor_parallel::Partition;
using tensor_parallel::TensorGroup;
using train::HeldTensor;
using train::MeshSizes;

struct PartPlace {
  int64_t pp = 0;
  int64_t tp = 0;
  int64_t ep = 0;
  IndexRange layers = {};  // Of the pipeline rank.
};

// The layers of the trainer on one rank, whose memory and messages are counted
// instead of made; no other rank exists.
class CountedLayers {
 public:
  // InvalidArgument if the model cannot be divided over the mesh.
  static absl::StatusOr<std::unique_ptr<CountedLayers>> Create(
      const CheckpointPlan& plan, const PartPlace& place) {
    std::unique_ptr<CountedLayers> rank(new CountedLayers);
    TESSERA_RETURN_IF_ERROR(rank->Make(plan, place));
    return rank;
  }

  std::span<const train::ParameterWindow> windows() const {
    return layers_->windows();
  }

 private:
  CountedLayers() : device_(memory_, memory_) {}

  absl::Status Make(const CheckpointPlan& plan, const PartPlace& place) {
    const MeshSizes& mesh = plan.mesh;
    TESSERA_ASSIGN_OR_RETURN(queue_, device_.CreateQueue("compute"));
    ops_.emplace(*queue_);
    TESSERA_ASSIGN_OR_RETURN(const TensorGroup tensor,
                             GroupOf(tensor_, place.tp, mesh.tp));
    std::optional<TensorGroup> experts;
    if (mesh.ep > 1) {
      TESSERA_ASSIGN_OR_RETURN(const TensorGroup group,
                               GroupOf(experts_, place.ep, mesh.ep));
      experts.emplace(group);
    }
    TESSERA_ASSIGN_OR_RETURN(const auto positions,
                             tensor_parallel::SequenceLayout::Contiguous(1, 1));
    std::vector<int32_t> windows;
    if (place.pp == 0) windows.push_back(0);
    for (int64_t layer = place.layers.begin; layer < place.layers.end;
         ++layer) {
      windows.push_back(static_cast<int32_t>(layer + 1));
    }
    if (place.pp + 1 == mesh.pp) {
      windows.push_back(static_cast<int32_t>(plan.identity.model.layers + 1));
    }
    TESSERA_ASSIGN_OR_RETURN(
        layers_,
        train::LlamaLayers::Create(
            tensor, {.group = TensorGroup(*ops_, nullptr), .layout = positions},
            {.mesh = mesh,
             .model = plan.identity.model,
             .dtype = plan.dtype,
             .length = 1},
            std::move(windows), experts));
    return absl::OkStatus();
  }

  absl::StatusOr<TensorGroup> GroupOf(std::unique_ptr<Communicator>& group,
                                      int64_t rank, int64_t ranks) {
    if (ranks > 1) {
      TESSERA_ASSIGN_OR_RETURN(
          auto engine,
          collectives::CreateCountingEngine({.rank = collectives::Rank(rank),
                                             .ranks = ranks,
                                             .memory = memory_}));
      TESSERA_ASSIGN_OR_RETURN(group, Communicator::Create(std::move(engine)));
    }
    return TensorGroup(*ops_, group.get()).WithoutWeightMemory();
  }

  // Members refer to earlier ones.
  const std::shared_ptr<CountingMemory> memory_ =
      std::make_shared<CountingMemory>();
  CountingDevice device_;
  std::unique_ptr<Queue> queue_;
  std::optional<tensor_parallel::Ops> ops_;
  std::unique_ptr<Communicator> tensor_, experts_;
  std::unique_ptr<train::LlamaLayers> layers_;
};

// A frozen tensor of an optimizer's state, with the type of gradients.
struct StateTensor {
  std::string name;
  int64_t size;
  std::vector<tensor_parallel::ParameterRows> rows;
  int64_t group;
};

// Appends the statistics of Shampoo. A run has those of a matrix where it is
// updated; a checkpoint has them with the first tensor rank.
absl::Status AddStatistics(const CheckpointPlan& plan,
                           const tensor_parallel::Parameter& parameter,
                           const PartPlace& place, int64_t group,
                           std::vector<StateTensor>& tensors) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<train::HiddenMatrix> matrices,
      train::HiddenMatricesOf(parameter, plan.identity.model,
                              {.tensor_rank = place.tp,
                               .tensor_ranks = plan.mesh.tp,
                               .expert_rank = place.ep,
                               .expert_ranks = plan.mesh.ep}));
  for (const train::HiddenMatrix& matrix : matrices) {
    const train::MatrixPart& whole = matrix.whole;
    if (whole.elements() == 0) continue;
    const int64_t size = train::StatisticsElements(
        whole.rows.size(), whole.columns.size(), plan.identity.shampoo_block);
    tensors.push_back(
        {.name = train::StatisticsName(parameter.name(), whole.rows.begin),
         .size = size,
         .rows = {{{0, place.tp == 0 ? size : 0}}},
         .group = group});
  }
  return absl::OkStatus();
}

// The parameters of a part of the checkpoint: those of experts that are divided
// among ranks, or all others.
struct PartParameters {
  zero3::ModelParameters model;
  std::vector<HeldTensor> tensors;  // By number.
};

absl::StatusOr<PartParameters> ParametersOf(const CheckpointPlan& plan,
                                            const CountedLayers& layers,
                                            const PartPlace& place,
                                            bool of_experts) {
  const std::string& optimizer = plan.identity.optimizer;
  zero3::ModelParameters::Builder builder;
  std::vector<HeldTensor> tensors;
  // The parameters of Adafactor or Shampoo follow all weights.
  std::vector<StateTensor> moments;
  // The head may share the embedding's table.
  std::set<const tensor_parallel::Parameter*> added;
  for (size_t window = 0; window < layers.windows().size(); ++window) {
    const auto group = static_cast<int64_t>(window);
    for (const auto* const parameter : layers.windows()[window]) {
      if (parameter->expert_parallel() != of_experts) continue;
      if (!added.insert(parameter).second) continue;
      const std::string& name = parameter->name();
      builder.Add({.name = name,
                   .shape = parameter->local_shape(),
                   .dtype = parameter->dtype(),
                   .trainable = parameter->trainable(),
                   .orthogonalized = optimizer == "muon" &&
                                     parameter->trainable() &&
                                     train::IsHiddenMatrix(name),
                   .group = group});
      tensors.push_back(train::HeldTensorOf(*parameter));
      if (!parameter->trainable()) continue;
      if (optimizer == "shampoo") {
        TESSERA_RETURN_IF_ERROR(
            AddStatistics(plan, *parameter, place, group, moments));
      }
      if (optimizer != "adafactor") continue;
      train::MomentTensor own = train::MomentsOf(
          {name, parameter->shape(), parameter->rows(), parameter->columns()},
          train::MatricesOf(name, parameter->shape()[0], plan.identity.model));
      moments.push_back(
          {std::move(own.name), own.size, std::move(own.rows), group});
    }
  }
  for (StateTensor& tensor : moments) {
    HeldTensor& held = tensors.emplace_back();
    held.name = tensor.name;
    held.shape = {tensor.size};
    held.rows = std::move(tensor.rows);
    builder.Add({.name = held.name,
                 .shape = held.held_shape(),
                 .dtype = tensor_parallel::GradientDType(plan.dtype),
                 .trainable = false,
                 .group = tensor.group});
  }
  TESSERA_ASSIGN_OR_RETURN(zero3::ModelParameters model, builder.Build());
  return PartParameters{std::move(model), std::move(tensors)};
}

absl::StatusOr<PlannedPart> PlanPart(const CheckpointPlan& plan,
                                     const CountedLayers& layers,
                                     const PartPlace& place, bool of_experts,
                                     std::string name) {
  TESSERA_ASSIGN_OR_RETURN(PartParameters parameters,
                           ParametersOf(plan, layers, place, of_experts));
  TESSERA_ASSIGN_OR_RETURN(
      zero3::StateLayout layout,
      zero3::StateLayout::Create(
          parameters.model,
          {.ranks = of_experts ? plan.mesh.edp() : plan.mesh.shard_ranks(),
           .alignment = std::max<int64_t>(plan.moments.format.block, 1)}));
  PlannedPart planned = {
      .part = {.name = std::move(name),
               .stage = plan.zero,
               .layout = std::move(layout),
               .moments = plan.moments.format,
               .moment_count = plan.moments.count,
               .loss_scale = plan.loss_scale,
               .steps_since_scale_change = plan.steps_since_scale_change},
      .tensors = std::move(parameters.tensors)};
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
      for (int64_t e = 0; e < mesh.ep; ++e) {
        const PartPlace place = {p, t, e, layers.RangeOf(p)};
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<CountedLayers> rank,
                                 CountedLayers::Create(plan, place));
        const auto add = [&](bool of_experts, std::string name) {
          absl::StatusOr<PlannedPart> part =
              PlanPart(plan, *rank, place, of_experts, std::move(name));
          if (part.ok()) parts.push_back(*std::move(part));
          return part.status();
        };
        if (e == 0) {
          TESSERA_RETURN_IF_ERROR(add(false, train::PartName(t, p)));
        }
        if (mesh.ep > 1) {
          TESSERA_RETURN_IF_ERROR(add(true, train::PartName(t, p, e)));
        }
      }
    }
  }
  if (!plan.fp8_scales.empty()) {
    // One part has the scales of all layers: readers join the texts of parts.
    parts.front().part.metadata[std::string(train::kFp8ScalesKey)] =
        plan.fp8_scales;
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
  if (PathExists(path)) {
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
      .fp8_scales = saved.fp8_scales(),
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
