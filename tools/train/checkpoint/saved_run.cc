#include "tools/train/checkpoint/saved_run.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/dtype/convert.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/lora.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::train {

namespace {

using model_files::LlamaPart;

using zero3::CheckpointPart;
using zero3::CheckpointReader;
using zero3::StateArray;
using zero3::StatePart;

// Each reader may have 64 open files.
constexpr size_t kMostOpenReaders = 8;
// MomentsOf both tensors of a tied table.
constexpr std::string_view kEmbeddingMoments = "embedding.weight.second_moment";
constexpr std::string_view kHeadMoments = "head.output.weight.second_moment";
// The limit of elements read together if only some columns of rows are needed.
constexpr int64_t kRowElements = int64_t{1} << 20;

std::vector<const HeldTensor*> HeldOf(const SavedTensor& tensor) {
  std::vector<const HeldTensor*> held;
  for (const SavedTensor::Holder& holder : tensor.holders) {
    held.push_back(&holder.held);
  }
  return held;
}

absl::StatusOr<std::vector<HeldTensor>> TensorsOf(const CheckpointPart& part) {
  const auto found = part.metadata.find(std::string(kTensorsKey));
  if (found == part.metadata.end()) {
    return absl::InvalidArgumentError(
        "not a checkpoint of a training run: it has no \"tensors\" in its "
        "metadata");
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<HeldTensor> tensors,
                           ParseHeldTensors(found->second));
  if (tensors.size() == part.model().all().size()) return tensors;
  return absl::InvalidArgumentError(
      absl::StrCat("its metadata has ", tensors.size(), " tensors, it has ",
                   part.model().count(), " parameters"));
}

std::string PartText(const CheckpointPart& part) {
  return absl::StrCat("part ", Quoted(part.name));
}

std::byte* At(const StateArray& array, int64_t element) {
  return array.bytes +
         (element - array.begin) * SizeInBytes(array.format.dtype);
}

using model_files::LlamaParameter;

// The number of elements converted together.
constexpr int64_t kChunkElements = int64_t{1} << 22;

bool IsInLayer(LlamaPart part) {
  return part > LlamaPart::kEmbedding && part < LlamaPart::kFinalNorm;
}

}  // namespace

std::vector<std::string> TrainedTensors(const model_files::ModelConfig& model,
                                        const LoraIdentity& lora) {
  std::vector<std::string> names;
  for (const LlamaParameter& parameter : model_files::LlamaParameters(model)) {
    const LlamaPart part = parameter.part;
    const std::string& name = parameter.name;
    if (lora.rank == 0) {
      if (part != LlamaPart::kRouterBias) names.push_back(name);
      continue;
    }
    if (!(model_files::IsAttentionMatrix(part) && lora.targets != "mlp") &&
        !(model_files::IsMlpMatrix(part) && lora.targets != "attention")) {
      continue;
    }
    for (const std::string_view factor :
         {tensor_parallel::kLoraA, tensor_parallel::kLoraB}) {
      names.push_back(absl::StrCat(absl::StripSuffix(name, "weight"), factor));
    }
  }
  return names;
}

std::string_view SourceOfTied(const model_files::ModelConfig& config,
                              std::string_view name) {
  if (!config.tied_embeddings) return name;
  return name == kHeadTensor    ? kEmbeddingTensor
         : name == kHeadMoments ? kEmbeddingMoments
                                : name;
}

absl::StatusOr<std::unique_ptr<SavedRun>> SavedRun::Open(std::string path) {
  std::unique_ptr<SavedRun> run(new SavedRun(std::move(path)));
  TESSERA_ASSIGN_OR_RETURN(run->manifest_, zero3::ReadManifest(run->path_));
  for (size_t i = 0; i < run->manifest_.parts.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        run->AddPart(i),
        Annotate(_, absl::StrCat(run->path_, ", ",
                                 PartText(run->manifest_.parts[i]))));
  }
  TESSERA_RETURN_IF_ERROR(run->CheckTensors());
  return run;
}

absl::Status SavedRun::AddPart(size_t index) {
  const CheckpointPart& part = manifest_.parts[index];
  TESSERA_ASSIGN_OR_RETURN(const RunIdentity identity,
                           IdentityFrom(part.metadata));
  TESSERA_ASSIGN_OR_RETURN(const RunProgress progress,
                           ProgressFrom(part.metadata));
  if (index == 0) {
    identity_ = identity;
    progress_ = progress;
  } else if (identity != identity_ || progress != progress_ ||
             part.moment_kinds() != moments()) {
    return absl::DataLossError(
        absl::StrCat("it is of another run, step or format of moments than ",
                     PartText(manifest_.parts[0]), "; use another checkpoint"));
  }
  if (const auto scales = part.metadata.find(std::string(kFp8ScalesKey));
      scales != part.metadata.end()) {
    fp8_scales_ += scales->second;
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<HeldTensor> tensors, TensorsOf(part));
  for (const zero3::ModelParameter& parameter : part.model().all()) {
    HeldTensor& held = tensors[static_cast<size_t>(parameter.id.value())];
    if (held.name != parameter.name() ||
        held.held_shape() != parameter.spec.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its metadata says that parameter ", parameter.id.value(), " is ",
          Quoted(held.name), " [", absl::StrJoin(held.held_shape(), ", "),
          "], it is ", Quoted(parameter.name()), " [",
          absl::StrJoin(parameter.spec.shape, ", "), "]"));
    }
    TESSERA_RETURN_IF_ERROR(AddHolder({index, parameter.id, std::move(held)}));
  }
  return absl::OkStatus();
}

absl::Status SavedRun::AddHolder(SavedTensor::Holder holder) {
  const zero3::ModelParameter& parameter =
      manifest_.parts[holder.part].model()[holder.id];
  SavedTensor& tensor = tensors_[holder.held.name];
  if (tensor.holders.empty()) {
    tensor.name = holder.held.name;
    tensor.shape = holder.held.shape;
    tensor.dtype = parameter.dtype();
  }
  const SavedTensor::Holder& first =
      tensor.holders.empty() ? holder : tensor.holders[0];
  const bool is_trainable =
      manifest_.parts[first.part].model()[first.id].trainable();
  if (tensor.shape != holder.held.shape || tensor.dtype != parameter.dtype() ||
      parameter.trainable() != is_trainable) {
    return absl::DataLossError(absl::StrCat(
        "tensor ", Quoted(tensor.name), " has another shape or type than in ",
        PartText(manifest_.parts[first.part])));
  }
  tensor.holders.push_back(std::move(holder));
  return absl::OkStatus();
}

absl::Status SavedRun::CheckTensors() const {
  for (const auto& [name, tensor] : tensors_) {
    if (CoverOnce(HeldOf(tensor))) continue;
    return absl::DataLossError(absl::StrCat(
        path_, ": the parts do not have each element of ", Quoted(name),
        " once: an element is missing or repeated; use another checkpoint"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const SavedTensor*> SavedRun::Get(std::string_view name) const {
  auto found = tensors_.find(std::string(name));
  if (found == tensors_.end()) {
    found = tensors_.find(std::string(SourceOfTied(identity_.model, name)));
  }
  if (found != tensors_.end()) return &found->second;
  return absl::DataLossError(
      absl::StrCat(path_, " has no tensor ", Quoted(name), " among its ",
                   tensors_.size(), "; use another checkpoint"));
}

absl::StatusOr<DType> SavedRun::dtype() const {
  TESSERA_ASSIGN_OR_RETURN(const SavedTensor* const embedding,
                           Get(kEmbeddingTensor));
  return embedding->dtype;
}

std::optional<zero3::StateFormat> SavedRun::FormatOf(const SavedTensor& tensor,
                                                     StatePart part) const {
  const SavedTensor::Holder& first = tensor.holders[0];
  return zero3::StateFormatOf(manifest_.parts[first.part].model()[first.id],
                              moments(), part);
}

absl::StatusOr<std::vector<TensorCopy>> SavedRun::CopiesOf(
    const SavedTensor& tensor, StatePart part, const HeldTensor& target,
    int64_t begin, int64_t end) const {
  if (tensor.shape != target.shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quoted(tensor.name), " is [",
        absl::StrJoin(tensor.shape, ", "), "] in the checkpoint and [",
        absl::StrJoin(target.shape, ", "), "] here"));
  }
  for (size_t i = 0; i < tensor.holders.size(); ++i) {
    if (begin == end || !HoldSame(tensor.holders[i].held, target)) continue;
    const int64_t size = end - begin;
    return std::vector<TensorCopy>{{i, 1, size, begin, size, begin, size}};
  }
  const auto format = FormatOf(tensor, part);
  if (format && format->block > 0 && begin < end) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the moments of ", Quoted(tensor.name), " are ", format->ToString(),
        ", in blocks that another number of tensor ranks would cut; resume "
        "with the tp that it was saved with, or train with f32 or bf16 "
        "moments"));
  }
  return CopiesTo(target, begin, end, HeldOf(tensor));
}

absl::StatusOr<CheckpointReader*> SavedRun::ReaderOf(size_t part) {
  const auto found = readers_.find(part);
  if (found != readers_.end()) return found->second.get();
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<CheckpointReader> reader,
      CheckpointReader::Open(path_, manifest_.parts[part].name));
  if (reader->manifest() != manifest_) {
    return absl::DataLossError(
        absl::StrCat(path_, " was replaced while it was read; read it again"));
  }
  if (readers_.size() == kMostOpenReaders) readers_.erase(readers_.begin());
  return (readers_[part] = std::move(reader)).get();
}

absl::Status SavedRun::ReadRows(CheckpointReader& reader, zero3::ParameterId id,
                                StatePart part, const TensorCopy& copy,
                                const StateArray& to) {
  const int64_t width = SizeInBytes(to.format.dtype);
  const int64_t at_once = std::max<int64_t>(
      1, kRowElements / std::max(copy.from_width, int64_t{1}));
  for (int64_t row = 0; row < copy.rows; row += at_once) {
    const int64_t rows = std::min(at_once, copy.rows - row);
    const int64_t begin = copy.from + row * copy.from_width;
    const int64_t size = (rows - 1) * copy.from_width + copy.columns;
    rows_.resize(static_cast<size_t>(size * width));
    TESSERA_RETURN_IF_ERROR(reader.Read(
        id, part, begin, begin + size, {to.format, begin, size, rows_.data()}));
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(At(to, copy.to + (row + i) * copy.to_width),
                  rows_.data() + i * copy.from_width * width,
                  static_cast<size_t>(copy.columns * width));
    }
  }
  return absl::OkStatus();
}

absl::Status SavedRun::Read(const SavedTensor& tensor, StatePart part,
                            std::span<const TensorCopy> copies,
                            const StateArray& to) {
  for (const TensorCopy& copy : copies) {
    const SavedTensor::Holder& holder = tensor.holders[copy.source];
    TESSERA_ASSIGN_OR_RETURN(CheckpointReader* const reader,
                             ReaderOf(holder.part));
    if (copy.rows > 1) {
      TESSERA_RETURN_IF_ERROR(ReadRows(*reader, holder.id, part, copy, to));
      continue;
    }
    // With blocks, elements have the same indices on both sides.
    const StateArray run =
        to.format.block > 0
            ? to
            : StateArray{to.format, copy.from, copy.columns, At(to, copy.to)};
    TESSERA_RETURN_IF_ERROR(reader->Read(holder.id, part, copy.from,
                                         copy.from + copy.columns, run));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path) {
  const std::string manifest = absl::StrCat(path, "/", zero3::kManifestName);
  if (PathExists(manifest)) return path;
  const std::string of_run = absl::StrCat(path, "/checkpoints");
  TESSERA_ASSIGN_OR_RETURN(
      const zero3::FoundCheckpoint latest,
      zero3::LatestCheckpoint(PathExists(of_run) ? of_run : path));
  return latest.path;
}

absl::StatusOr<std::unique_ptr<ModelReader>> ModelReader::Open(
    const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(std::string found, ResolveCheckpoint(path));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<SavedRun> saved,
                           SavedRun::Open(std::move(found)));
  const auto parameters = model_files::LlamaParameters(saved->identity().model);
  for (const LlamaParameter& parameter : parameters) {
    TESSERA_ASSIGN_OR_RETURN(const SavedTensor* const tensor,
                             saved->Get(parameter.name));
    if (tensor->shape == parameter.shape) continue;
    return absl::DataLossError(
        absl::StrCat(saved->path(), ": tensor ", Quoted(tensor->name),
                     " does not have the shape that its model needs"));
  }
  TESSERA_ASSIGN_OR_RETURN(const SavedTensor* const embedding,
                           saved->Get(kEmbeddingTensor));
  const DType dtype = embedding->dtype;
  return std::unique_ptr<ModelReader>(new ModelReader(std::move(saved), dtype));
}

absl::Status ModelReader::Read(LlamaPart part, int64_t layer, int64_t row_begin,
                               int64_t row_end, std::span<float> target) {
  if (IsInLayer(part) && (layer < 0 || layer >= config().layers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", layer, "; the model has layers 0 to ", config().layers - 1));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const SavedTensor* const tensor,
      saved_->Get(model_files::LlamaParameterName(part, layer)));
  TESSERA_RETURN_IF_ERROR(ReadRows(*tensor, row_begin, row_end, target));
  return saved_->identity().lora.rank == 0
             ? absl::OkStatus()
             : AddAdapter(part, layer, row_begin, row_end, target);
}

absl::Status ModelReader::ReadRows(const SavedTensor& tensor, int64_t row_begin,
                                   int64_t row_end, std::span<float> target) {
  HeldTensor rows = WholeTensor(tensor.name, tensor.shape);
  const int64_t width = rows.width();
  if (row_begin < 0 || row_begin > row_end || row_end > tensor.shape[0] ||
      static_cast<int64_t>(target.size()) != (row_end - row_begin) * width) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows ", row_begin, " to ", row_end, " of ",
                     Quoted(tensor.name), ", of ", tensor.shape[0], " rows of ",
                     width, ", into ", target.size(), " numbers"));
  }
  StatePart state = StatePart::kMaster;
  if (!saved_->FormatOf(tensor, state)) state = StatePart::kValue;
  const zero3::StateFormat format = *saved_->FormatOf(tensor, state);
  for (int64_t begin = row_begin * width; begin < row_end * width;) {
    const int64_t end = std::min(begin + kChunkElements, row_end * width);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorCopy> copies,
                             saved_->CopiesOf(tensor, state, rows, begin, end));
    stored_.resize(static_cast<size_t>(format.BytesOf(end - begin)));
    TESSERA_RETURN_IF_ERROR(saved_->Read(
        tensor, state, copies, {format, begin, end - begin, stored_.data()}));
    TESSERA_RETURN_IF_ERROR(
        Convert(format.dtype, stored_, DType::kF32,
                std::as_writable_bytes(target.subspan(
                    static_cast<size_t>(begin - row_begin * width),
                    static_cast<size_t>(end - begin)))));
    begin = end;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SavedAdapter>> ModelReader::ReadAdapter(
    LlamaPart part, int64_t layer) {
  const std::string weight = model_files::LlamaParameterName(part, layer);
  const std::string_view prefix = absl::StripSuffix(weight, "weight");
  const auto& tensors = saved_->tensors();
  const auto a = tensors.find(absl::StrCat(prefix, tensor_parallel::kLoraA));
  const auto b = tensors.find(absl::StrCat(prefix, tensor_parallel::kLoraB));
  const int64_t rank = saved_->identity().lora.rank;
  if (rank == 0 || a == tensors.end() || b == tensors.end()) {
    return std::optional<SavedAdapter>();
  }
  const std::vector<int64_t>& shape = tensors.at(weight).shape;
  SavedAdapter adapter = {.ends = {shape[0]}};
  if (part == LlamaPart::kQkv) {
    const int64_t queries = config().heads * config().head_size;
    const int64_t keys = config().kv_heads * config().head_size;
    adapter.ends = {queries, queries + keys, queries + 2 * keys};
  } else if (part == LlamaPart::kLatentDown && config().latent.query_rank > 0) {
    adapter.ends = {config().latent.query_rank, shape[0]};
  } else if (part == LlamaPart::kGateUp || part == LlamaPart::kSharedGateUp) {
    adapter.ends = {shape[0] / 2, shape[0]};
  } else if (part == LlamaPart::kExpertsGateUp ||
             part == LlamaPart::kExpertsDown) {
    const int64_t experts = config().mixture.experts;
    adapter.ends.clear();
    for (int64_t e = 1; e <= experts; ++e) {
      adapter.ends.push_back(e * (shape[0] / experts));
    }
  }
  const int64_t factors = static_cast<int64_t>(adapter.ends.size()) * rank;
  if (a->second.shape != std::vector<int64_t>{factors, shape[1]} ||
      b->second.shape != std::vector<int64_t>{adapter.ends.back(), rank}) {
    return absl::DataLossError(
        absl::StrCat(saved_->path(), ": the adapter of ", Quoted(weight),
                     " does not have the shape that its model and rank need"));
  }
  adapter.a.resize(static_cast<size_t>(factors * shape[1]));
  adapter.b.resize(static_cast<size_t>(shape[0] * rank));
  TESSERA_RETURN_IF_ERROR(ReadRows(a->second, 0, factors, adapter.a));
  TESSERA_RETURN_IF_ERROR(ReadRows(b->second, 0, shape[0], adapter.b));
  return std::optional(std::move(adapter));
}

// Adds rows of (alpha / rank) b a, with the factor a of each row's projection.
absl::Status ModelReader::AddAdapter(LlamaPart part, int64_t layer,
                                     int64_t row_begin, int64_t row_end,
                                     std::span<float> target) {
  if (adapter_of_ != std::pair(part, layer)) {
    adapter_of_.reset();
    TESSERA_ASSIGN_OR_RETURN(adapter_, ReadAdapter(part, layer));
    adapter_of_ = {part, layer};
  }
  const std::optional<SavedAdapter>& adapter = adapter_;
  if (!adapter || row_begin == row_end) return absl::OkStatus();
  const LoraIdentity& lora = saved_->identity().lora;
  const double scale = lora.alpha / static_cast<double>(lora.rank);
  const size_t width = target.size() / static_cast<size_t>(row_end - row_begin);
  std::vector<double> sums(width);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const auto projection =
        std::upper_bound(adapter->ends.begin(), adapter->ends.end(), row) -
        adapter->ends.begin();
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t k = 0; k < lora.rank; ++k) {
      const double factor =
          adapter->b[static_cast<size_t>(row * lora.rank + k)];
      const float* const from =
          &adapter->a[static_cast<size_t>(projection * lora.rank + k) * width];
      for (size_t i = 0; i < width; ++i) sums[i] += factor * double{from[i]};
    }
    float* const to = &target[static_cast<size_t>(row - row_begin) * width];
    for (size_t i = 0; i < width; ++i) {
      to[i] = static_cast<float>(double{to[i]} + scale * sums[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
