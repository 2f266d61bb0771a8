#include "tools/train/sample/generate.h"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "tools/train/checkpoint/model_reader.h"
#include "tools/train/sample/weight_reader.h"

namespace tessera::train {
namespace {

class CheckpointWeights final : public WeightReader {
 public:
  explicit CheckpointWeights(std::unique_ptr<ModelReader> reader)
      : reader_(std::move(reader)) {}

  const model_files::ModelConfig& config() const override {
    return reader_->config();
  }
  absl::Status Read(model_files::LlamaPart part, int64_t layer,
                    int64_t row_begin, int64_t row_end,
                    std::span<float> target) override {
    return reader_->Read(part, layer, row_begin, row_end, target);
  }

 private:
  std::unique_ptr<ModelReader> reader_;
};

}  // namespace

absl::StatusOr<std::string> GenerateText(const std::string& checkpoint,
                                         const text::Tokenizer& tokenizer,
                                         tensor_parallel::Ops& ops,
                                         const SampleOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckSampleOptions(options));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<ModelReader> reader,
                           ModelReader::Open(checkpoint));
  CheckpointWeights weights(std::move(reader));
  return ContinueText(weights, tokenizer, ops, options);
}

}  // namespace tessera::train
