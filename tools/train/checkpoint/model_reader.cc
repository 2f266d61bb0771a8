#include "tools/train/checkpoint/model_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/train/checkpoint/resolve_checkpoint.h"
#include "tools/train/checkpoint/run_tensor_names.h"

namespace tessera::train {
namespace {

using model_files::LlamaParameter;
using model_files::LlamaPart;
using zero3::StatePart;

// Converted at once.
constexpr int64_t kChunkElements = int64_t{1} << 22;

bool IsInLayer(LlamaPart part) {
  return part > LlamaPart::kEmbedding && part < LlamaPart::kFinalNorm;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelReader>> ModelReader::Open(
    const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(std::string found, ResolveCheckpoint(path));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<SavedRun> saved,
                           SavedRun::Open(std::move(found)));
  const auto parameters = model_files::LlamaParameters(saved->identity().model);
  for (const LlamaParameter& parameter : parameters) {
    TESSERA_ASSIGN_OR_RETURN(
        const SavedTensor* const tensor,
        saved->Get(RunTensorName(parameter.part, parameter.layer)));
    if (tensor->shape == parameter.shape) continue;
    return absl::DataLossError(
        absl::StrCat(saved->path(), ": tensor ", Quoted(tensor->name),
                     " has not the shape that its model needs"));
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
  TESSERA_ASSIGN_OR_RETURN(const SavedTensor* const tensor,
                           saved_->Get(RunTensorName(part, layer)));
  HeldTensor rows = WholeTensor(tensor->name, tensor->shape);
  const int64_t width = rows.width();
  if (row_begin < 0 || row_begin > row_end || row_end > tensor->shape[0] ||
      static_cast<int64_t>(target.size()) != (row_end - row_begin) * width) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows ", row_begin, " to ", row_end, " of ",
                     Quoted(tensor->name), ", of ", tensor->shape[0],
                     " rows of ", width, ", into ", target.size(), " numbers"));
  }
  StatePart state = StatePart::kMaster;
  if (!saved_->FormatOf(*tensor, state)) state = StatePart::kValue;
  const zero3::StateFormat format = *saved_->FormatOf(*tensor, state);
  for (int64_t begin = row_begin * width; begin < row_end * width;) {
    const int64_t end = std::min(begin + kChunkElements, row_end * width);
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<TensorCopy> copies,
        saved_->CopiesOf(*tensor, state, rows, begin, end));
    stored_.resize(static_cast<size_t>(format.BytesOf(end - begin)));
    TESSERA_RETURN_IF_ERROR(saved_->Read(
        *tensor, state, copies, {format, begin, end - begin, stored_.data()}));
    TESSERA_RETURN_IF_ERROR(
        Convert(format.dtype, stored_, DType::kF32,
                std::as_writable_bytes(target.subspan(
                    static_cast<size_t>(begin - row_begin * width),
                    static_cast<size_t>(end - begin)))));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
