#include "tools/model_files/hugging_face_weights.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/model_files/megatron_names.h"
#include "tools/model_files/stacked_experts.h"

namespace tessera::model_files {
namespace {

bool Exists(const std::string& directory, std::string_view name) {
  return PathExists(absl::StrCat(directory, "/", name));
}

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.weight";
constexpr int64_t kComparedWeights = int64_t{1} << 22;
constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";

// The shapes of a stack in MXFP4: the rows of an expert are not transposed.
std::vector<int64_t> ScalesShape(const StackedExperts& stack) {
  return {stack.experts, stack.rows, stack.columns / kMxfp4Group};
}
std::vector<int64_t> BlocksShape(const StackedExperts& stack) {
  std::vector<int64_t> shape = ScalesShape(stack);
  shape.push_back(kMxfp4Group / 2);
  return shape;
}

// The tensors of Megatron-LM that may hold a piece.
std::vector<PiecePlace> MegatronCandidatesFor(const ModelConfig& config,
                                              const LlamaParameter& parameter,
                                              const HuggingFacePiece& piece) {
  std::vector<PiecePlace> found =
      MegatronPlaces(config, parameter, piece, MegatronLayers::kInOneTensor);
  for (PiecePlace& place :
       MegatronPlaces(config, parameter, piece, MegatronLayers::kApart)) {
    found.push_back(std::move(place));
  }
  return found;
}

// The tensors that may hold a piece, in the order of preference.
std::vector<PiecePlace> CandidatesFor(const ModelConfig& config,
                                      const LlamaParameter& parameter,
                                      const HuggingFacePiece& piece) {
  const PiecePlace usual = HuggingFacePlace(parameter, piece);
  std::vector<PiecePlace> found = {usual};
  const auto add = [&](std::string name) -> PiecePlace& {
    found.push_back(usual);
    found.back().name = std::move(name);
    return found.back();
  };
  if (usual.stack && usual.stack->columns > 0 &&
      usual.stack->columns % kMxfp4Group == 0) {
    add(absl::StrCat(piece.name, kBlocks)).shape = BlocksShape(*usual.stack);
  }
  if (piece.name == kEmbedding && config.tied_embeddings) {
    add(std::string(kHead));
  }
  const std::string mlp =
      absl::StrCat("model.layers.", parameter.layer, ".mlp.");
  const bool is_down = parameter.part == LlamaPart::kExpertsDown;
  if (parameter.part == LlamaPart::kRouter) {
    add(absl::StrCat(mlp, "gate.weight"));
  } else if (!usual.stack &&
             (is_down || parameter.part == LlamaPart::kExpertsGateUp)) {
    const int64_t experts = config.mixture.experts;
    PiecePlace& place = add(absl::StrCat(
        mlp, is_down ? "experts.down_proj" : "experts.gate_up_proj"));
    place.shape = {experts, parameter.shape[0] / experts, parameter.shape[1]};
    place.row = piece.target_row;
  }
  for (size_t i = 0, named = found.size(); i < named; ++i) {
    const std::string bare(absl::StripPrefix(found[i].name, "model."));
    if (bare == found[i].name) continue;
    found.push_back(found[i]);
    found.back().name = bare;
  }
  return found;
}

// The name of the scales of a tensor in fp8.
std::string InverseScalesOf(std::string_view name) {
  return absl::StrCat(name, "_scale_inv");
}

// Converts InvalidArgument to DataLoss: errors in files are not bad usage.
absl::Status AsDamage(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::DataLossError(status.message());
}

absl::Status CheckRows(const LlamaParameter& parameter, int64_t begin,
                       int64_t end, size_t target) {
  const int64_t rows = parameter.shape[0];
  const int64_t columns = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
  if (0 <= begin && begin <= end && end <= rows &&
      static_cast<int64_t>(target) == (end - begin) * columns) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rows ", begin, " to ", end, " of ", parameter.name, " into ", target,
      " numbers; it has ", rows, " rows of ", columns));
}

// True if a tensor has the shape of its place. Megatron-LM pads vocabularies.
bool Fits(const StoredTensor& found, const PiecePlace& place) {
  if (found.shape.size() != place.shape.size() || found.shape.empty() ||
      !std::equal(found.shape.begin() + 1, found.shape.end(),
                  place.shape.begin() + 1)) {
    return false;
  }
  const bool is_padded =
      place.name == kMegatronEmbedding || place.name == kMegatronHead;
  return found.shape[0] == place.shape[0] ||
         (is_padded && found.shape[0] > place.shape[0]);
}

bool HasSafetensors(const std::string& path) {
  return Exists(path, kSingleFile) || Exists(path, kIndexFile);
}

// The prefix of a model's names among the tensors of a checkpoint: that of its
// embedding. Names of optimizer states begin with "optim".
absl::StatusOr<std::string> PrefixOf(const std::vector<std::string>& names) {
  std::optional<std::string> prefix;
  for (const std::string& name : names) {
    if (absl::StartsWith(name, "optim")) continue;
    for (const std::string_view embedding :
         {kEmbedding, absl::StripPrefix(kEmbedding, "model."),
          kMegatronEmbedding}) {
      if (!absl::EndsWith(name, embedding)) continue;
      const std::string found = name.substr(0, name.size() - embedding.size());
      if (!found.empty() && found.back() != '.') break;
      if (prefix) {
        return absl::UnimplementedError(
            absl::StrCat("two models, under ", Quoted(*prefix), " and ",
                         Quoted(found), "; save the one to read by itself"));
      }
      prefix = found;
      break;
    }
  }
  if (prefix) return *prefix;
  return absl::NotFoundError(absl::StrCat("no tensor whose name ends with ",
                                          Quoted(kEmbedding),
                                          ", which its config.json needs"));
}

// The name of the tensor of scales that belongs to one of blocks; empty for
// other tensors.
std::string Mxfp4ScalesOf(const std::string& name) {
  const std::string_view stem = absl::StripSuffix(name, kBlocks);
  return stem == name ? "" : absl::StrCat(stem, kScales);
}

}  // namespace

struct HuggingFaceWeights::LastExpert {
  std::mutex mutex;
  std::string name;
  int64_t expert = -1;
  std::vector<float> matrix;
};

HuggingFaceWeights::HuggingFaceWeights(HuggingFaceConfig config,
                                       ModelSource source, Tensors tensors)
    : config_(std::move(config)),
      source_(std::move(source)),
      tensors_(std::move(tensors)),
      last_expert_(std::make_unique<LastExpert>()) {}

HuggingFaceWeights::~HuggingFaceWeights() = default;
HuggingFaceWeights::HuggingFaceWeights(HuggingFaceWeights&&) noexcept = default;
HuggingFaceWeights& HuggingFaceWeights::operator=(
    HuggingFaceWeights&&) noexcept = default;

bool IsHuggingFaceModel(const std::string& path) {
  return Exists(path, "config.json") &&
         (HasSafetensors(path) || Exists(path, kTorchMetadataFile));
}

absl::StatusOr<HuggingFaceWeights> HuggingFaceWeights::Open(
    const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(
      HuggingFaceConfig config,
      LoadHuggingFaceConfig(absl::StrCat(directory, "/config.json")),
      AsDamage(_));
  TESSERA_ASSIGN_OR_RETURN(Tensors tensors, OpenTensors(directory),
                           AsDamage(_));
  TESSERA_ASSIGN_OR_RETURN(ModelSource source, LoadModelSource(directory),
                           AsDamage(_));
  HuggingFaceWeights weights(std::move(config), std::move(source),
                             std::move(tensors));
  TESSERA_RETURN_IF_ERROR(weights.FindPlaces(),
                          Annotate(_, QuotedPath(directory)));
  return weights;
}

absl::StatusOr<HuggingFaceWeights::Tensors> HuggingFaceWeights::OpenTensors(
    const std::string& directory) {
  if (HasSafetensors(directory) || !Exists(directory, kTorchMetadataFile)) {
    return SafetensorsSet::Open(directory);
  }
  TESSERA_ASSIGN_OR_RETURN(TorchCheckpoint checkpoint,
                           TorchCheckpoint::Open(directory));
  TESSERA_ASSIGN_OR_RETURN(const std::string prefix,
                           PrefixOf(checkpoint.Names()),
                           Annotate(_, QuotedPath(directory)));
  checkpoint.KeepUnder(prefix);
  return checkpoint;
}

const StoredTensor* HuggingFaceWeights::Find(std::string_view name) const {
  return std::visit([&](const auto& tensors) { return tensors.Find(name); },
                    tensors_);
}

absl::Status HuggingFaceWeights::ReadTensorRows(std::string_view name,
                                                int64_t first,
                                                TensorView target) const {
  return std::visit(
      [&](const auto& tensors) {
        return tensors.ReadRows(name, first, target);
      },
      tensors_);
}

absl::Status HuggingFaceWeights::FindPlaces() {
  const bool is_megatron = Find(kMegatronEmbedding) != nullptr;
  if (is_megatron) {
    TESSERA_RETURN_IF_ERROR(CheckMegatron(config_.model));
  }
  absl::flat_hash_set<std::string> names;
  for (const LlamaParameter& parameter : LlamaParameters(config_.model)) {
    for (const HuggingFacePiece& piece : parameter.pieces) {
      std::vector<PiecePlace> candidates =
          is_megatron ? MegatronCandidatesFor(config_.model, parameter, piece)
                      : CandidatesFor(config_.model, parameter, piece);
      for (const PiecePlace& place : candidates) names.insert(place.name);
      TESSERA_RETURN_IF_ERROR(FindPlace(piece, std::move(candidates)));
    }
  }
  if (is_megatron) TESSERA_RETURN_IF_ERROR(CheckLayers(names));
  return CheckTiedTables();
}

// A model of Megatron-LM is described by its arguments, which config.json may
// contradict: without its biases, for example, it would be another one.
absl::Status HuggingFaceWeights::CheckLayers(
    const absl::flat_hash_set<std::string>& names) const {
  for (const std::string& name : std::visit(
           [](const auto& tensors) { return tensors.Names(); }, tensors_)) {
    if (!absl::StartsWith(name, "decoder.") || names.contains(name)) continue;
    return absl::DataLossError(
        absl::StrCat("tensor ", Quoted(name),
                     " is not in the model that its config.json describes"));
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceWeights::FindPlace(const HuggingFacePiece& piece,
                                           std::vector<PiecePlace> candidates) {
  for (PiecePlace& candidate : candidates) {
    const StoredTensor* const found = Find(candidate.name);
    if (found == nullptr) continue;
    if (!Fits(*found, candidate)) {
      return absl::DataLossError(absl::StrCat(
          "tensor ", Quoted(candidate.name), " is [",
          absl::StrJoin(found->shape, ", "), "]; its config.json needs [",
          absl::StrJoin(candidate.shape, ", "), "]"));
    }
    TESSERA_RETURN_IF_ERROR(DTypeOf(*found).status());
    if (const std::string scales = Mxfp4ScalesOf(candidate.name);
        !scales.empty()) {
      const StoredTensor* const of_blocks = Find(scales);
      if (of_blocks == nullptr || found->type != ElementType::kU8 ||
          of_blocks->type != ElementType::kU8 ||
          of_blocks->shape != ScalesShape(*candidate.stack)) {
        return absl::DataLossError(absl::StrCat(
            "tensor ", Quoted(candidate.name), " needs ", Quoted(scales),
            " of [", absl::StrJoin(ScalesShape(*candidate.stack), ", "),
            "], both of U8"));
      }
    }
    TESSERA_RETURN_IF_ERROR(CheckScales(*found));
    places_[piece.name] = std::move(candidate);
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("no tensor ",
                                          Quoted(candidates.front().name),
                                          ", which its config.json needs"));
}

// transformers does not tie tables that differ, whatever config.json says.
absl::Status HuggingFaceWeights::CheckTiedTables() const {
  const ModelConfig& model = config_.model;
  if (!model.tied_embeddings || Find(kHead) == nullptr) {
    return absl::OkStatus();
  }
  const std::string& embedding = places_.at(kEmbedding).name;
  if (embedding == kHead) return absl::OkStatus();
  const int64_t most = std::max<int64_t>(1, kComparedWeights / model.hidden);
  std::vector<float> tables[2];
  for (int64_t row = 0; row < model.vocabulary; row += most) {
    const int64_t rows = std::min(most, model.vocabulary - row);
    for (const bool is_head : {false, true}) {
      std::vector<float>& table = tables[is_head];
      table.resize(static_cast<size_t>(rows * model.hidden));
      TESSERA_ASSIGN_OR_RETURN(
          const TensorView view,
          TensorView::Of(std::span(table), {{rows, model.hidden}}));
      TESSERA_RETURN_IF_ERROR(
          ReadTensorRows(is_head ? kHead : embedding, row, view));
    }
    if (tables[0] == tables[1]) continue;
    return absl::DataLossError(absl::StrCat(
        "tensors ", Quoted(embedding), " and ", Quoted(kHead),
        " differ, and its config.json shares them; set "
        "\"tie_word_embeddings\": false, as transformers reads such a model"));
  }
  return absl::OkStatus();
}

// Reads contiguous rows of a tensor, as those of a parameter of this shape.
absl::Status HuggingFaceWeights::ReadRun(std::string_view name, int64_t first,
                                         std::vector<int64_t> shape,
                                         std::span<float> target) const {
  shape[0] = static_cast<int64_t>(target.size());
  if (shape.size() == 2) shape[0] /= shape[1];
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView view,
      TensorView::Create(std::as_writable_bytes(target), DType::kF32, shape));
  TESSERA_RETURN_IF_ERROR(ReadTensorRows(name, first, view));
  return Scale(name, first, view);
}

absl::Status HuggingFaceWeights::CheckScales(
    const StoredTensor& weights) const {
  const StoredTensor* const scales = Find(InverseScalesOf(weights.name));
  if (scales == nullptr) return absl::OkStatus();
  std::vector<int64_t> shape = weights.shape;
  for (int64_t& size : shape) size = (size + kScaleBlock - 1) / kScaleBlock;
  if (shape.size() == 2 && scales->shape == shape) {
    return DTypeOf(*scales).status();
  }
  return absl::DataLossError(absl::StrCat(
      "tensor ", Quoted(scales->name), " is [",
      absl::StrJoin(scales->shape, ", "), "]; it must be [",
      absl::StrJoin(shape, ", "), "], a number for each block of ", kScaleBlock,
      " x ", kScaleBlock, " of ", Quoted(weights.name)));
}

// Multiplies rows of a tensor, from row `first` on, by the scales of their
// blocks, if it has any.
absl::Status HuggingFaceWeights::Scale(std::string_view name, int64_t first,
                                       TensorView target) const {
  const std::string scales_name = InverseScalesOf(name);
  if (Find(scales_name) == nullptr) return absl::OkStatus();
  const int64_t rows = target.shape()[0], columns = target.shape()[1];
  const int64_t blocks = (columns + kScaleBlock - 1) / kScaleBlock;
  std::vector<float> scales(static_cast<size_t>(blocks));
  TESSERA_ASSIGN_OR_RETURN(const TensorView view,
                           TensorView::Of(std::span(scales), {{1, blocks}}));
  TESSERA_ASSIGN_OR_RETURN(const std::span<float> values,
                           target.AsSpan<float>());
  for (int64_t row = 0; row < rows; ++row) {
    if (row == 0 || (first + row) % kScaleBlock == 0) {
      TESSERA_RETURN_IF_ERROR(
          ReadTensorRows(scales_name, (first + row) / kScaleBlock, view));
    }
    for (int64_t i = 0; i < columns; ++i) {
      values[static_cast<size_t>(row * columns + i)] *=
          scales[static_cast<size_t>(i / kScaleBlock)];
    }
  }
  return absl::OkStatus();
}

// Reads the matrix [rows, columns] of an expert.
absl::Status HuggingFaceWeights::ReadExpert(const PiecePlace& place,
                                            int64_t expert,
                                            std::vector<float>& matrix) const {
  const StackedExperts& stack = *place.stack;
  const int64_t rows = stack.rows, width = stack.width();
  std::vector<float> file(static_cast<size_t>(stack.elements()));
  matrix.resize(file.size());
  const std::string scales_name = Mxfp4ScalesOf(place.name);
  if (scales_name.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView view,
                             TensorView::Of(std::span(file), {{width, rows}}));
    TESSERA_RETURN_IF_ERROR(ReadTensorRows(place.name, expert * width, view));
    stack.FromFile(file, matrix);
    return absl::OkStatus();
  }
  const int64_t groups = width / kMxfp4Group;
  std::vector<std::byte> blocks(file.size() / 2);
  std::vector<std::byte> scales(static_cast<size_t>(rows * groups));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView blocks_view,
      TensorView::Create(blocks, DType::kU8,
                         {{rows * groups, kMxfp4Group / 2}}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView scales_view,
      TensorView::Create(scales, DType::kU8, {{rows, groups}}));
  TESSERA_RETURN_IF_ERROR(
      ReadTensorRows(place.name, expert * rows * groups, blocks_view));
  TESSERA_RETURN_IF_ERROR(
      ReadTensorRows(scales_name, expert * rows, scales_view));
  DecodeMxfp4(blocks, scales, file);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(file.begin() + stack.FileRow(row) * width, width,
                matrix.begin() + row * width);
  }
  return absl::OkStatus();
}

// Reads the rows [begin, end) of stacked experts.
absl::Status HuggingFaceWeights::ReadStacked(const PiecePlace& place,
                                             int64_t begin, int64_t end,
                                             std::span<float> target) const {
  const StackedExperts& stack = *place.stack;
  LastExpert& last = *last_expert_;
  const std::lock_guard lock(last.mutex);
  auto to = target.begin();
  while (begin < end) {
    const int64_t expert = begin / stack.rows, row = begin % stack.rows;
    if (last.expert != expert || last.name != place.name) {
      last.expert = -1;
      TESSERA_RETURN_IF_ERROR(ReadExpert(place, expert, last.matrix));
      last.name = place.name;
      last.expert = expert;
    }
    const int64_t rows = std::min(end - begin, stack.rows - row);
    to = std::copy_n(last.matrix.begin() + row * stack.width(),
                     rows * stack.width(), to);
    begin += rows;
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceWeights::Read(LlamaPart part, int64_t layer,
                                      int64_t row_begin, int64_t row_end,
                                      std::span<float> target) const {
  if (part == LlamaPart::kHead && config_.model.tied_embeddings) {
    part = LlamaPart::kEmbedding;
  }
  const LlamaParameter parameter =
      MakeLlamaParameter(config_.model, part, layer);
  TESSERA_RETURN_IF_ERROR(
      CheckRows(parameter, row_begin, row_end, target.size()));
  const int64_t columns = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
  for (const HuggingFacePiece& piece :
       PiecesOfRows(parameter, row_begin, row_end)) {
    const std::span<float> some = target.subspan(
        static_cast<size_t>((piece.target_row - row_begin) * columns),
        static_cast<size_t>(piece.rows * columns));
    const PiecePlace& place = places_.at(piece.name);
    const int64_t end = piece.source_row + piece.rows;
    if (place.stack) {
      TESSERA_RETURN_IF_ERROR(ReadStacked(place, piece.source_row, end, some));
      continue;
    }
    TESSERA_RETURN_IF_ERROR(place.VisitRuns(
        piece.source_row, end,
        [&](int64_t tensor_row, int64_t piece_row, int64_t rows) {
          return ReadRun(
              place.name, tensor_row, parameter.shape,
              some.subspan(
                  static_cast<size_t>((piece_row - piece.source_row) * columns),
                  static_cast<size_t>(rows * columns)));
        }));
    if (parameter.offset == 0) continue;
    for (float& weight : some) weight += static_cast<float>(parameter.offset);
  }
  return absl::OkStatus();
}

}  // namespace tessera::model_files
