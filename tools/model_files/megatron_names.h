// The tensors of Megatron-LM's distributed checkpoints
// (--ckpt-format=torch_dist) that hold Tessera's parameters. Their names, by
// part, are the table in megatron_names.cc.
//
// If the layers are of one kind, a tensor has the weights of all layers, one
// after another; otherwise, as in DeepSeek with dense layers before mixtures,
// each layer has its own tensor:
//
// clang-format off
//   decoder.layers.mlp.router.weight                        layers, experts, hidden
//   decoder.layers.mlp.experts.experts.linear_fc2.weight    layers, experts, hidden, e
//   decoder.layers.7.mlp.router.weight                      experts, hidden
//   decoder.layers.7.mlp.experts.experts.linear_fc2.weight  experts, hidden, e
// clang-format on
//
// The rows of linear_qkv are ordered by group: the group's query heads, its key
// head and its value head. Those of linear_fc1 are the gates and then the ups,
// of each expert. The tables may have more rows than the vocabulary.
// Source: megatron-core 0.16, models/gpt/gpt_model.py and transformer/.
#ifndef TESSERA_TOOLS_MODEL_FILES_MEGATRON_NAMES_H_
#define TESSERA_TOOLS_MODEL_FILES_MEGATRON_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/piece_place.h"
#include "tools/model_files/safetensors_header.h"

namespace tessera::model_files {

inline constexpr std::string_view kMegatronEmbedding =
    "embedding.word_embeddings.weight";
inline constexpr std::string_view kMegatronHead = "output_layer.weight";

// InvalidArgument, with what Megatron's files cannot hold, if a model has it.
// The functions below are for other models.
absl::Status CheckMegatron(const ModelConfig& config);

enum class MegatronLayers { kInOneTensor, kApart };

// The layout in which Megatron-LM saves the layers of a model.
MegatronLayers MegatronLayersOf(const ModelConfig& config);

// The places of a piece of a parameter in Megatron's files, each under a name
// that it has in some modules: an export has all of them, a reader takes the
// first one that it finds.
std::vector<PiecePlace> MegatronPlaces(const ModelConfig& config,
                                       const LlamaParameter& parameter,
                                       const HuggingFacePiece& piece,
                                       MegatronLayers layers);

struct MegatronContents {
  std::vector<StoredTensor> tensors = {};
  // The names of the objects, each the list [None], that Megatron-LM expects
  // beside the tensors: the states of modules for fp8.
  std::vector<std::string> objects = {};
};

// The tensors and objects of an export.
MegatronContents MegatronContentsOf(const ModelConfig& config,
                                    ElementType type);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_MEGATRON_NAMES_H_
