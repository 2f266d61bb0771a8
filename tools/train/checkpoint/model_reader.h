// ModelReader: the weights of a checkpoint as whole tensors, on one process.
//
//   TESSERA_ASSIGN_OR_RETURN(auto reader,
//   ModelReader::Open("run/checkpoints")); std::vector<float> rows(64 *
//   reader->config().hidden); TESSERA_RETURN_IF_ERROR(
//       reader->Read(LlamaPart::kQkv, /*layer=*/3, 0, 64, rows));
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_MODEL_READER_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_MODEL_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"
#include "tools/train/checkpoint/saved_run.h"

namespace tessera::train {

// One thread at a time.
class ModelReader {
 public:
  // A checkpoint, or the newest complete one of a directory of them. Errors of
  // ResolveCheckpoint and SavedRun::Open; DataLoss where a tensor of the model
  // is missing.
  static absl::StatusOr<std::unique_ptr<ModelReader>> Open(
      const std::string& path);

  const model_files::ModelConfig& config() const {
    return saved_->identity().model;
  }
  const SavedRun& saved() const { return *saved_; }
  // Of the values that the run computed with.
  DType dtype() const { return dtype_; }

  // Rows [row_begin, row_end) of a whole parameter (llama_names.h has their
  // order), row by row; a norm's rows are its elements. From master weights
  // where there are, else the values. Of tied embeddings the head is the
  // embedding. InvalidArgument, with nothing read, where there are no such
  // rows or `target` has another size; DataLoss where files are damaged.
  absl::Status Read(model_files::LlamaPart part, int64_t layer,
                    int64_t row_begin, int64_t row_end,
                    std::span<float> target);

 private:
  ModelReader(std::unique_ptr<SavedRun> saved, DType dtype)
      : saved_(std::move(saved)), dtype_(dtype) {}

  const std::unique_ptr<SavedRun> saved_;
  const DType dtype_;
  std::vector<std::byte> stored_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_MODEL_READER_H_
