#include "tools/model_files/hugging_face_weights.h"

#include <unistd.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"

namespace tessera::model_files {
namespace {

bool Exists(const std::string& directory, std::string_view name) {
  return access(absl::StrCat(directory, "/", name).c_str(), F_OK) == 0;
}

absl::Status CheckTensors(const SafetensorsSet& set, const ModelConfig& config,
                          const std::string& directory) {
  for (const StoredTensor& needed :
       HuggingFaceTensors(config, ElementType::kF32)) {
    const StoredTensor* const found = set.Find(needed.name);
    if (found == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(QuotedPath(directory), " has no tensor ",
                       Quoted(needed.name), ", which its config.json needs"));
    }
    if (found->shape == needed.shape) continue;
    return absl::DataLossError(absl::StrCat(
        QuotedPath(directory), ": tensor ", Quoted(needed.name), " is [",
        absl::StrJoin(found->shape, ", "), "]; its config.json needs [",
        absl::StrJoin(needed.shape, ", "), "]"));
  }
  return absl::OkStatus();
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
  TESSERA_RETURN_IF_ERROR(CheckTensors(set, config.model, directory));
  return HuggingFaceWeights(std::move(config), std::move(set));
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
    TESSERA_RETURN_IF_ERROR(set_.ReadRows(piece.name, piece.source_row, view));
    if (parameter.offset == 0) continue;
    for (float& weight : some) weight += static_cast<float>(parameter.offset);
  }
  return absl::OkStatus();
}

}  // namespace tessera::model_files
