// HuggingFaceWeights: the weights of a Hugging Face directory as Tessera's
// parameters.
//
//   TESSERA_ASSIGN_OR_RETURN(const HuggingFaceWeights weights,
//                            HuggingFaceWeights::Open("models/smollm"));
//   std::vector<float> rows(64 * weights.config().model.hidden);
//   TESSERA_RETURN_IF_ERROR(
//       weights.Read(LlamaPart::kQkv, /*layer=*/3, 0, 64, rows));
#ifndef TESSERA_TOOLS_MODEL_FILES_HUGGING_FACE_WEIGHTS_H_
#define TESSERA_TOOLS_MODEL_FILES_HUGGING_FACE_WEIGHTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/safetensors_set.h"

namespace tessera::model_files {

// Whether `path` is a directory with a config.json and the names of
// safetensors, readable or not.
bool IsHuggingFaceModel(const std::string& path);

// Const calls are thread-safe.
class HuggingFaceWeights {
 public:
  // Opens config.json and the safetensors of a directory. Reads only headers.
  // NotFound, with its name, if a file or a tensor that config.json needs is
  // missing; DataLoss if a file is malformed or a tensor has another shape;
  // Unimplemented for a model that ParseHuggingFaceConfig does not support.
  static absl::StatusOr<HuggingFaceWeights> Open(const std::string& directory);

  const HuggingFaceConfig& config() const { return config_; }

  // Reads rows [row_begin, row_end) of a whole parameter in the order of
  // llama_names.h as f32; a norm's rows are its elements. The head of tied
  // embeddings is the embedding. InvalidArgument, with nothing read, if there
  // are no such rows or `target` has another size.
  absl::Status Read(LlamaPart part, int64_t layer, int64_t row_begin,
                    int64_t row_end, std::span<float> target) const;

 private:
  HuggingFaceWeights(HuggingFaceConfig config, SafetensorsSet set)
      : config_(std::move(config)), set_(std::move(set)) {}

  HuggingFaceConfig config_;
  SafetensorsSet set_;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_HUGGING_FACE_WEIGHTS_H_
