// The tensors of Megatron-LM's distributed checkpoints
// (--ckpt-format=torch_dist) that hold Tessera's parameters: a tensor has the
// weights of all layers.
//
// clang-format off
//   L: layers, G: groups of query heads, E: experts, other letters as in llama_names.h
//   embedding.word_embeddings.weight                         vocab, hidden
//   decoder.layers.self_attention.linear_qkv.layer_norm_weight   L, hidden
//   decoder.layers.self_attention.linear_qkv.{weight,bias}       L, qkv, hidden
//   decoder.layers.self_attention.{q,k}_layernorm.weight         L, head_size
//   decoder.layers.self_attention.linear_proj.{weight,bias}      L, hidden, q
//   decoder.layers.mlp.linear_fc1.layer_norm_weight              L, hidden
//   decoder.layers.mlp.linear_fc1.weight                         L, 2m, hidden
//   decoder.layers.mlp.linear_fc2.weight                         L, hidden, m
//   decoder.layers.pre_mlp_layernorm.weight                      L, hidden
//   decoder.layers.mlp.router.weight                             L, E, hidden
//   decoder.layers.mlp.experts.experts.linear_fc1.weight         L, E, 2e, hidden
//   decoder.layers.mlp.experts.experts.linear_fc2.weight         L, E, hidden, e
//   decoder.final_layernorm.weight                           hidden
//   output_layer.weight                                      vocab, hidden
// clang-format on
//
// The rows of linear_qkv are ordered by group: the group's query heads, its key
// head and its value head. The tables may have more rows than the vocabulary.
// Source: megatron-core 0.16, models/gpt/gpt_model.py and transformer/.
#ifndef TESSERA_TOOLS_MODEL_FILES_MEGATRON_NAMES_H_
#define TESSERA_TOOLS_MODEL_FILES_MEGATRON_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/piece_place.h"
#include "tools/model_files/safetensors_header.h"

namespace tessera::model_files {

inline constexpr std::string_view kMegatronEmbedding =
    "embedding.word_embeddings.weight";
inline constexpr std::string_view kMegatronHead = "output_layer.weight";
// The norms before an MLP and, with Transformer Engine, before a mixture.
inline constexpr std::string_view kMegatronMlpNorm =
    "decoder.layers.mlp.linear_fc1.layer_norm_weight";
inline constexpr std::string_view kMegatronMixtureNorm =
    "decoder.layers.pre_mlp_layernorm.weight";

// The place of a piece of a parameter in Megatron's files. Unimplemented, with
// the parameter, if they have no such tensor.
absl::StatusOr<PiecePlace> MegatronPlace(const ModelConfig& config,
                                         const LlamaParameter& parameter,
                                         const HuggingFacePiece& piece);

// The tensors of a model. Unimplemented, with the parameter or the layers, if
// Megatron's files cannot hold it.
absl::StatusOr<std::vector<StoredTensor>> MegatronTensors(
    const ModelConfig& config, ElementType type);

// The names of the objects, each the list [None], that Megatron-LM expects
// beside the tensors: the states of modules for fp8.
std::vector<std::string> MegatronObjects(const ModelConfig& config);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_MEGATRON_NAMES_H_
