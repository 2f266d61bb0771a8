// Reads the weights in a Hugging Face directory as Tessera's parameters.
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

// True if `path` is a directory that contains a config.json and safetensors
// files by name. The files need not be readable.
bool IsHuggingFaceModel(const std::string& path);

// The weights of one model. Const calls are thread-safe.
class HuggingFaceWeights {
 public:
  // Opens config.json and the safetensors of a directory; reads only headers.
  // NotFound, with the name, if a file or a tensor that config.json requires is
  // missing; DataLoss if a file is malformed or a tensor has the wrong shape;
  // Unimplemented for a model that ParseHuggingFaceConfig does not support.
  static absl::StatusOr<HuggingFaceWeights> Open(const std::string& directory);

  const HuggingFaceConfig& config() const { return config_; }

  // Reads the rows [row_begin, row_end) of a whole parameter as f32, in the
  // order of llama_names.h. The rows of a norm are its elements. For tied
  // embeddings, the head is the embedding. InvalidArgument, before anything is
  // read, if the rows do not exist or `target` has another size.
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
