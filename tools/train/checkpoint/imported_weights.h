// ImportedWeights: the weights of a Hugging Face model as tensors of a run.
//
//   TESSERA_ASSIGN_OR_RETURN(const ImportedWeights weights,
//                            ImportedWeights::Open("models/smollm"));
//   options.model = weights.config().model;
//   options.first_weights = [&](const auto& parameter, int64_t begin,
//                               TensorView elements) {
//     return weights.Fill(parameter, begin, elements);
//   };
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_IMPORTED_WEIGHTS_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_IMPORTED_WEIGHTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tools/model_files/hugging_face_weights.h"
#include "tools/model_files/llama_names.h"
#include "tools/train/checkpoint/held_tensor.h"

namespace tessera::train {

// Const calls are thread-safe.
class ImportedWeights {
 public:
  // Opens a directory with config.json and safetensors. Returns the errors of
  // HuggingFaceWeights::Open.
  static absl::StatusOr<ImportedWeights> Open(const std::string& directory);

  const model_files::HuggingFaceConfig& config() const {
    return files_.config();
  }
  const model_files::ModelSource& source() const { return files_.source(); }

  // The type in which a run of this model computes by default: the type in
  // config.json if it is f32, bf16 or f16, otherwise f32.
  DType dtype() const;

  // Reads the elements [begin, begin + n) that `held` holds of a tensor. Reads
  // the rows that contain them, a few million weights at a time.
  // InvalidArgument if the model has no such tensor; the system's error, or
  // DataLoss, if a file cannot be read.
  absl::Status Read(const HeldTensor& held, int64_t begin,
                    std::span<float> elements) const;

  // The same for the elements that a parameter holds (RunOptions::
  // first_weights). `elements` is a tensor of f32 in host memory.
  absl::Status Fill(const tensor_parallel::Parameter& parameter, int64_t begin,
                    TensorView elements) const;

 private:
  using Place = std::pair<model_files::LlamaPart, int64_t>;  // With its layer.

  explicit ImportedWeights(model_files::HuggingFaceWeights files);

  model_files::HuggingFaceWeights files_;
  absl::flat_hash_map<std::string, Place> places_;  // By name.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_IMPORTED_WEIGHTS_H_
