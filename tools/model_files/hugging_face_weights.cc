#include "tools/model_files/hugging_face_weights.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"

namespace tessera::model_files {
namespace {

bool Exists(const std::string& directory, std::string_view name) {
  return access(absl::StrCat(directory, "/", name).c_str(), F_OK) == 0;
}

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.weight";
constexpr int64_t kComparedWeights = int64_t{1} << 22;

// A tensor that may hold a piece of a parameter.
struct Candidate {
  std::string name;
  std::vector<int64_t> shape;
  int64_t row = 0;  // The row at which the piece begins.
};

// The tensors that may hold a piece, in the order of preference.
std::vector<Candidate> CandidatesFor(const ModelConfig& config,
                                     const LlamaParameter& parameter,
                                     const HuggingFacePiece& piece) {
  std::vector<int64_t> shape = parameter.shape;
  shape[0] = piece.rows;
  std::vector<Candidate> found = {{piece.name, shape}};
  if (piece.name == kEmbedding && config.tied_embeddings) {
    found.push_back({std::string(kHead), shape});
  }
  const std::string mlp =
      absl::StrCat("model.layers.", parameter.layer, ".mlp.");
  const bool is_down = parameter.part == LlamaPart::kExpertsDown;
  if (parameter.part == LlamaPart::kRouter) {
    found.push_back({absl::StrCat(mlp, "gate.weight"), shape});
  } else if (is_down || parameter.part == LlamaPart::kExpertsGateUp) {
    const int64_t experts = config.mixture.experts;
    found.push_back(
        {absl::StrCat(mlp,
                      is_down ? "experts.down_proj" : "experts.gate_up_proj"),
         {experts, parameter.shape[0] / experts, parameter.shape[1]},
         piece.target_row});
  }
  for (size_t i = 0, named = found.size(); i < named; ++i) {
    const std::string bare(absl::StripPrefix(found[i].name, "model."));
    if (bare == found[i].name) continue;
    found.push_back({bare, found[i].shape, found[i].row});
  }
  return found;
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

}  // namespace

bool IsHuggingFaceModel(const std::string& path) {
  return Exists(path, "config.json") &&
         (Exists(path, kSingleFile) || Exists(path, kIndexFile));
}

absl::StatusOr<HuggingFaceWeights> HuggingFaceWeights::Open(
    const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(
      HuggingFaceConfig config,
      LoadHuggingFaceConfig(absl::StrCat(directory, "/config.json")),
      AsDamage(_));
  TESSERA_ASSIGN_OR_RETURN(SafetensorsSet set, SafetensorsSet::Open(directory),
                           AsDamage(_));
  TESSERA_ASSIGN_OR_RETURN(ModelSource source, LoadModelSource(directory),
                           AsDamage(_));
  HuggingFaceWeights weights(std::move(config), std::move(source),
                             std::move(set));
  TESSERA_RETURN_IF_ERROR(weights.FindPlaces(),
                          Annotate(_, QuotedPath(directory)));
  return weights;
}

absl::Status HuggingFaceWeights::FindPlaces() {
  for (const LlamaParameter& parameter : LlamaParameters(config_.model)) {
    for (const HuggingFacePiece& piece : parameter.pieces) {
      TESSERA_RETURN_IF_ERROR(FindPlace(parameter, piece));
    }
  }
  return CheckTiedTables();
}

absl::Status HuggingFaceWeights::FindPlace(const LlamaParameter& parameter,
                                           const HuggingFacePiece& piece) {
  for (Candidate& candidate : CandidatesFor(config_.model, parameter, piece)) {
    const StoredTensor* const found = set_.Find(candidate.name);
    if (found == nullptr) continue;
    if (found->shape != candidate.shape) {
      return absl::DataLossError(absl::StrCat(
          "tensor ", Quoted(candidate.name), " is [",
          absl::StrJoin(found->shape, ", "), "]; its config.json needs [",
          absl::StrJoin(candidate.shape, ", "), "]"));
    }
    TESSERA_RETURN_IF_ERROR(DTypeOf(*found).status());
    places_[piece.name] = {std::move(candidate.name), candidate.row};
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("no tensor ", Quoted(piece.name),
                                          ", which its config.json needs"));
}

// transformers does not tie tables that differ, whatever config.json says.
absl::Status HuggingFaceWeights::CheckTiedTables() const {
  const ModelConfig& model = config_.model;
  if (!model.tied_embeddings || set_.Find(kHead) == nullptr) {
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
          set_.ReadRows(is_head ? kHead : embedding, row, view));
    }
    if (tables[0] == tables[1]) continue;
    return absl::DataLossError(absl::StrCat(
        "tensors ", Quoted(embedding), " and ", Quoted(kHead),
        " differ, and its config.json shares them; set "
        "\"tie_word_embeddings\": false, as transformers reads such a model"));
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
    std::vector<int64_t> shape = parameter.shape;
    shape[0] = piece.rows;
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView view,
        TensorView::Create(std::as_writable_bytes(some), DType::kF32, shape));
    const Place& place = places_.at(piece.name);
    TESSERA_RETURN_IF_ERROR(
        set_.ReadRows(place.name, place.row + piece.source_row, view));
    if (parameter.offset == 0) continue;
    for (float& weight : some) weight += static_cast<float>(parameter.offset);
  }
  return absl::OkStatus();
}

}  // namespace tessera::model_files
