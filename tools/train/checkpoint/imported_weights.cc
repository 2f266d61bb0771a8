#include "tools/train/checkpoint/imported_weights.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/train/checkpoint/saved_run.h"

namespace tessera::train {
namespace {

using model_files::HuggingFaceWeights;
using model_files::LlamaParameter;
using model_files::LlamaPart;
using tensor_parallel::IndexRange;

constexpr int64_t kWeightsAtOnce = int64_t{1} << 22;

// Reads consecutive rows of a tensor, of which only some columns are held.
class RowReader {
 public:
  // `elements` are the held elements from `begin` on.
  RowReader(const HuggingFaceWeights& files, LlamaPart part, int64_t layer,
            const HeldTensor& held, int64_t begin, std::span<float> elements)
      : files_(files),
        part_(part),
        layer_(layer),
        held_(held),
        columns_(held.shape.size() == 2 ? held.shape[1] : 1),
        begin_(begin),
        elements_(elements) {}

  // The rows `rows` are held from held element `place` on. Reads those that
  // contain requested elements.
  absl::Status Read(IndexRange rows, int64_t place) {
    const int64_t width = held_.width();
    const int64_t end = begin_ + static_cast<int64_t>(elements_.size());
    const int64_t first = std::max(begin_, place) - place;
    const int64_t last = std::min(end, place + rows.size() * width) - place;
    if (first >= last) return absl::OkStatus();
    const int64_t at_once = std::max<int64_t>(1, kWeightsAtOnce / columns_);
    const int64_t rows_end = (last + width - 1) / width;
    for (int64_t row = first / width; row < rows_end; row += at_once) {
      const int64_t count = std::min(at_once, rows_end - row);
      buffer_.resize(static_cast<size_t>(count * columns_));
      TESSERA_RETURN_IF_ERROR(files_.Read(part_, layer_, rows.begin + row,
                                          rows.begin + row + count, buffer_));
      for (int64_t i = 0; i < count; ++i) CopyRow(i, place + (row + i) * width);
    }
    return absl::OkStatus();
  }

 private:
  // Copies the requested elements of row `row` of the buffer, whose held
  // columns begin at held element `place`.
  void CopyRow(int64_t row, int64_t place) {
    const int64_t from = std::max(place, begin_);
    const int64_t to = std::min(
        place + held_.width(), begin_ + static_cast<int64_t>(elements_.size()));
    if (from >= to) return;
    const float* const source =
        buffer_.data() + row * columns_ + held_.columns.begin + (from - place);
    std::copy(source, source + (to - from), elements_.data() + (from - begin_));
  }

  const HuggingFaceWeights& files_;
  const LlamaPart part_;
  const int64_t layer_;
  const HeldTensor& held_;
  const int64_t columns_;  // Of the whole tensor.
  const int64_t begin_;
  const std::span<float> elements_;
  std::vector<float> buffer_;
};

}  // namespace

absl::StatusOr<ImportedWeights> ImportedWeights::Open(
    const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(HuggingFaceWeights files,
                           HuggingFaceWeights::Open(directory));
  return ImportedWeights(std::move(files));
}

ImportedWeights::ImportedWeights(HuggingFaceWeights files)
    : files_(std::move(files)) {
  for (const LlamaParameter& parameter :
       model_files::LlamaParameters(config().model)) {
    places_.emplace(parameter.name, Place(parameter.part, parameter.layer));
  }
}

DType ImportedWeights::dtype() const {
  const std::optional<DType>& stored = config().dtype;
  return stored == DType::kBF16 || stored == DType::kF16 ? *stored
                                                         : DType::kF32;
}

absl::Status ImportedWeights::Read(const HeldTensor& held, int64_t begin,
                                   std::span<float> elements) const {
  const auto found = places_.find(SourceOfTied(config().model, held.name));
  if (found == places_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no tensor ", Quoted(held.name)));
  }
  const auto [part, layer] = found->second;
  RowReader reader(files_, part, layer, held, begin, elements);
  int64_t place = 0;
  for (const tensor_parallel::ParameterRows& rows : held.rows) {
    TESSERA_RETURN_IF_ERROR(reader.Read(rows.range, place));
    place += rows.range.size() * held.width();
  }
  return absl::OkStatus();
}

absl::Status ImportedWeights::Fill(const tensor_parallel::Parameter& parameter,
                                   int64_t begin, TensorView elements) const {
  if (elements.dtype() != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weights are read as f32, not as ", DTypeName(elements.dtype())));
  }
  return Read(HeldTensorOf(parameter), begin,
              {reinterpret_cast<float*>(elements.data()),
               static_cast<size_t>(elements.element_count())});
}

}  // namespace tessera::train
