#include "tools/model_files/megatron_names.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/model_files/architectures.h"

namespace tessera::model_files {
namespace {

// The name of the tensor that holds a part; empty if there is none.
std::string_view NameOf(const ModelConfig& config, LlamaPart part) {
  switch (part) {
    case LlamaPart::kEmbedding:
      return kMegatronEmbedding;
    case LlamaPart::kAttentionNorm:
      return "decoder.layers.self_attention.linear_qkv.layer_norm_weight";
    case LlamaPart::kQkv:
      return "decoder.layers.self_attention.linear_qkv.weight";
    case LlamaPart::kQkvBias:
      return "decoder.layers.self_attention.linear_qkv.bias";
    case LlamaPart::kAttentionOutput:
      return "decoder.layers.self_attention.linear_proj.weight";
    case LlamaPart::kAttentionOutputBias:
      return "decoder.layers.self_attention.linear_proj.bias";
    case LlamaPart::kQueryNorm:
      return "decoder.layers.self_attention.q_layernorm.weight";
    case LlamaPart::kKeyNorm:
      return "decoder.layers.self_attention.k_layernorm.weight";
    case LlamaPart::kMlpNorm:
      return config.mixture.experts > 0 ? kMegatronMixtureNorm
                                        : kMegatronMlpNorm;
    case LlamaPart::kGateUp:
      return "decoder.layers.mlp.linear_fc1.weight";
    case LlamaPart::kDown:
      return "decoder.layers.mlp.linear_fc2.weight";
    case LlamaPart::kRouter:
      return "decoder.layers.mlp.router.weight";
    case LlamaPart::kExpertsGateUp:
      return "decoder.layers.mlp.experts.experts.linear_fc1.weight";
    case LlamaPart::kExpertsDown:
      return "decoder.layers.mlp.experts.experts.linear_fc2.weight";
    case LlamaPart::kFinalNorm:
      return "decoder.final_layernorm.weight";
    case LlamaPart::kHead:
      return kMegatronHead;
    default:
      return "";
  }
}

// The rows of queries, keys or values, which alternate by group of heads.
void PlaceInGroups(const ModelConfig& config, const HuggingFacePiece& piece,
                   PiecePlace& place) {
  const int64_t group_heads = config.heads / config.kv_heads;
  place.stride = (group_heads + 2) * config.head_size;
  place.block = config.head_size;
  if (piece.target_row == 0) {
    place.block = group_heads * config.head_size;
  } else {
    const bool is_key = piece.target_row == config.QueryRows();
    place.row += (group_heads + (is_key ? 0 : 1)) * config.head_size;
  }
}

}  // namespace

absl::StatusOr<PiecePlace> MegatronPlace(const ModelConfig& config,
                                         const LlamaParameter& parameter,
                                         const HuggingFacePiece& piece) {
  const LlamaPart part = parameter.part;
  const std::string_view name = NameOf(config, part);
  const bool has_kinds =
      config.mixture.experts > 0 && config.mixture.dense_layers > 0;
  if (name.empty() || has_kinds || config.shared_qk_norm || config.sinks ||
      config.IsLatent() || TraitsOf(config.architecture).fused_projections) {
    return absl::UnimplementedError(absl::StrCat(
        parameter.name,
        " in a checkpoint of Megatron-LM; supported are models whose layers "
        "are all of one kind, without shared experts, norms of outputs, norms "
        "over all heads, attention sinks, fused projections, and latent "
        "attention"));
  }
  PiecePlace place = {.name = std::string(name), .shape = parameter.shape};
  if (parameter.layer < 0) return place;
  if (part == LlamaPart::kExpertsGateUp || part == LlamaPart::kExpertsDown) {
    place.shape[0] /= config.mixture.experts;
    place.shape.insert(place.shape.begin(), config.mixture.experts);
  }
  place.shape.insert(place.shape.begin(), config.layers);
  place.row = parameter.layer * parameter.shape[0];
  if (part == LlamaPart::kQkv || part == LlamaPart::kQkvBias) {
    PlaceInGroups(config, piece, place);
  } else {
    place.row += piece.target_row;
  }
  return place;
}

absl::StatusOr<std::vector<StoredTensor>> MegatronTensors(
    const ModelConfig& config, ElementType type) {
  std::vector<StoredTensor> tensors;
  absl::flat_hash_set<std::string> names;
  for (const LlamaParameter& parameter : LlamaParameters(config)) {
    for (const HuggingFacePiece& piece : parameter.pieces) {
      TESSERA_ASSIGN_OR_RETURN(PiecePlace place,
                               MegatronPlace(config, parameter, piece));
      if (!names.insert(place.name).second) continue;
      tensors.push_back({.name = std::move(place.name),
                         .type = type,
                         .shape = std::move(place.shape)});
    }
  }
  return tensors;
}

std::vector<std::string> MegatronObjects(const ModelConfig& config) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view module, std::string_view index,
                       std::string_view count) {
    names.push_back(absl::StrCat("decoder.layers.", module,
                                 "._extra_state/shard_", index, "_", count));
  };
  const std::string layers = absl::StrCat(config.layers);
  const int64_t experts = config.mixture.experts;
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = absl::StrCat(i);
    for (const char* const module :
         {"core_attention", "linear_proj", "linear_qkv"}) {
      add(absl::StrCat("self_attention.", module), layer, layers);
    }
    for (const char* const product : {"linear_fc1", "linear_fc2"}) {
      if (experts == 0) add(absl::StrCat("mlp.", product), layer, layers);
      for (int64_t expert = 0; expert < experts; ++expert) {
        add(absl::StrCat("mlp.experts.experts.", product),
            absl::StrCat(layer, ".", expert),
            absl::StrCat(layers, ".", experts));
      }
    }
  }
  return names;
}

}  // namespace tessera::model_files
