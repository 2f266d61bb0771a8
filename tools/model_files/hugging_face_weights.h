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
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/piece_place.h"
#include "tools/model_files/safetensors_set.h"
#include "tools/model_files/torch_checkpoint.h"

namespace tessera::model_files {

// True if `path` is a directory that contains a config.json and, by name,
// safetensors files or a checkpoint of torch. The files need not be readable.
bool IsHuggingFaceModel(const std::string& path);

// The weights of one model. Const calls are thread-safe.
//
// As in transformers, tensors are found under the names of llama_names.h and
// these:
//
//   without "model."             files of the model without its head
//   lm_head.weight               for the embedding that shares its weights
//   mlp.experts.gate_up_proj,    all experts of a layer in one tensor, and the
//   mlp.experts.down_proj,       router beside them, as the modules of
//   mlp.gate.weight              transformers 5 hold them
//   ..._blocks and ..._scales    for the experts of GPT-OSS in MXFP4
//                                (stacked_experts.h), as published
//
// If a tensor in fp8 has a tensor of the same name plus "_scale_inv", as those
// of DeepSeek-V3, its weights are multiplied by the number there of their block
// of 128 x 128.
//
// Without safetensors, they are in a checkpoint of torch.distributed.checkpoint
// (torch_checkpoint.h) under the same names after any prefix, such as the
// "model." of a dictionary, or under those of Megatron-LM (megatron_names.h).
// Optimizer states are ignored.
class HuggingFaceWeights {
 public:
  ~HuggingFaceWeights();
  HuggingFaceWeights(HuggingFaceWeights&&) noexcept;
  HuggingFaceWeights& operator=(HuggingFaceWeights&&) noexcept;

  // Opens config.json and the weights of a directory; reads only headers,
  // and both tables of tied embeddings if the files have two. NotFound, with
  // the name, if a file or a tensor that config.json requires is missing;
  // DataLoss if a file is malformed, a tensor has the wrong shape, the two
  // tables differ, or a layer of Megatron-LM has more than config.json says;
  // Unimplemented for a model that ParseHuggingFaceConfig does not support and
  // for a tensor of a type without a DType; InvalidArgument for a checkpoint of
  // Megatron-LM that CheckMegatron rejects.
  static absl::StatusOr<HuggingFaceWeights> Open(const std::string& directory);

  const HuggingFaceConfig& config() const { return config_; }
  // The files that describe the model.
  const ModelSource& source() const { return source_; }

  // Reads the rows [row_begin, row_end) of a whole parameter as f32, in the
  // order of llama_names.h. The rows of a norm are its elements. For tied
  // embeddings, the head is the embedding. InvalidArgument, before anything is
  // read, if the rows do not exist or `target` has another size.
  absl::Status Read(LlamaPart part, int64_t layer, int64_t row_begin,
                    int64_t row_end, std::span<float> target) const;

 private:
  using Tensors = std::variant<SafetensorsSet, TorchCheckpoint>;

  // The last expert that was read of stacked ones, of which callers read some
  // rows at a time.
  struct LastExpert;

  HuggingFaceWeights(HuggingFaceConfig config, ModelSource source,
                     Tensors tensors);

  static absl::StatusOr<Tensors> OpenTensors(const std::string& directory);

  const StoredTensor* Find(std::string_view name) const;
  absl::Status ReadTensorRows(std::string_view name, int64_t first,
                              TensorView target) const;
  absl::Status CheckScales(const StoredTensor& weights) const;
  absl::Status Scale(std::string_view name, int64_t first,
                     TensorView target) const;
  absl::Status ReadRun(std::string_view name, int64_t first,
                       std::vector<int64_t> shape,
                       std::span<float> target) const;

  absl::Status ReadExpert(const PiecePlace& place, int64_t expert,
                          std::vector<float>& matrix) const;
  absl::Status ReadStacked(const PiecePlace& place, int64_t begin, int64_t end,
                           std::span<float> target) const;

  absl::Status FindPlaces();
  absl::Status FindPlace(const HuggingFacePiece& piece,
                         std::vector<PiecePlace> candidates);
  absl::Status CheckLayers(const absl::flat_hash_set<std::string>& names) const;
  absl::Status CheckTiedTables() const;

  HuggingFaceConfig config_;
  ModelSource source_;
  Tensors tensors_;
  absl::flat_hash_map<std::string, PiecePlace>
      places_;  // By name in llama_names.h.
  std::unique_ptr<LastExpert> last_expert_;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_HUGGING_FACE_WEIGHTS_H_
