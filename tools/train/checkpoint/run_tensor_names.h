// The names of a run's tensors: what LlamaStage calls the parameters of
// llama_names.h.
//
//   RunTensorName(LlamaPart::kQkv, 3);  // "layers.3.attention.qkv.weight"
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_TENSOR_NAMES_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_TENSOR_NAMES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

inline constexpr std::string_view kEmbeddingTensor = "embedding.weight";
inline constexpr std::string_view kHeadTensor = "head.output.weight";

// `layer` counts for the parts of layers alone. The shapes and the order of the
// rows are those of llama_names.h.
std::string RunTensorName(model_files::LlamaPart part, int64_t layer = -1);

// The name of the tensor that has these weights: of a tied head the embedding.
std::string_view SourceOfTied(const model_files::ModelConfig& config,
                              std::string_view name);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RUN_TENSOR_NAMES_H_
