#include "tools/model_files/megatron_names.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/model_files/architectures.h"

namespace tessera::model_files {
namespace {

// A tensor of a part; in layers, its name follows that of the layer. A norm has
// several, because Transformer Engine's modules fuse it with the product that
// follows and others do not.
struct Row {
  LlamaPart part;
  std::string_view name;
  // If given, only for the pieces whose Hugging Face names contain it.
  std::string_view source = {};
};

constexpr Row kRows[] = {
    {LlamaPart::kEmbedding, kMegatronEmbedding},
    {LlamaPart::kAttentionNorm, "self_attention.linear_qkv.layer_norm_weight"},
    {LlamaPart::kAttentionNorm, "input_layernorm.weight"},
    {LlamaPart::kQkv, "self_attention.linear_qkv.weight"},
    {LlamaPart::kQkvBias, "self_attention.linear_qkv.bias"},
    {LlamaPart::kAttentionOutput, "self_attention.linear_proj.weight"},
    {LlamaPart::kAttentionOutputBias, "self_attention.linear_proj.bias"},
    {LlamaPart::kQueryNorm, "self_attention.q_layernorm.weight"},
    {LlamaPart::kQueryNorm, "self_attention.linear_q_up_proj.layer_norm_weight",
     "q_a_layernorm"},
    {LlamaPart::kKeyNorm, "self_attention.k_layernorm.weight", "k_norm"},
    {LlamaPart::kKeyNorm, "self_attention.kv_layernorm.weight",
     "kv_a_layernorm"},
    {LlamaPart::kKeyNorm, "self_attention.linear_kv_up_proj.layer_norm_weight",
     "kv_a_layernorm"},
    {LlamaPart::kSinks, "self_attention.core_attention.softmax_offset"},
    {LlamaPart::kLatentDown, "self_attention.linear_q_down_proj.weight",
     "q_a_proj"},
    {LlamaPart::kLatentDown, "self_attention.linear_kv_down_proj.weight",
     "kv_a_proj"},
    {LlamaPart::kQueryUp, "self_attention.linear_q_up_proj.weight", "q_b_proj"},
    {LlamaPart::kQueryUp, "self_attention.linear_q_proj.weight", "q_proj"},
    {LlamaPart::kKvUp, "self_attention.linear_kv_up_proj.weight"},
    {LlamaPart::kMlpNorm, "mlp.linear_fc1.layer_norm_weight"},
    {LlamaPart::kMlpNorm, "pre_mlp_layernorm.weight"},
    {LlamaPart::kGateUp, "mlp.linear_fc1.weight"},
    {LlamaPart::kDown, "mlp.linear_fc2.weight"},
    {LlamaPart::kRouter, "mlp.router.weight"},
    {LlamaPart::kRouterBias, "mlp.router.expert_bias"},
    {LlamaPart::kRouterLogitBias, "mlp.router.bias"},
    {LlamaPart::kExpertsGateUp, "mlp.experts.experts.linear_fc1.weight"},
    {LlamaPart::kExpertsGateUpBias, "mlp.experts.experts.linear_fc1.bias"},
    {LlamaPart::kExpertsDown, "mlp.experts.experts.linear_fc2.weight"},
    {LlamaPart::kExpertsDownBias, "mlp.experts.experts.linear_fc2.bias"},
    {LlamaPart::kSharedGateUp, "mlp.shared_experts.linear_fc1.weight"},
    {LlamaPart::kSharedDown, "mlp.shared_experts.linear_fc2.weight"},
    {LlamaPart::kFinalNorm, "decoder.final_layernorm.weight"},
    {LlamaPart::kHead, kMegatronHead},
};

bool IsOfExperts(LlamaPart part) {
  return part >= LlamaPart::kExpertsGateUp &&
         part <= LlamaPart::kExpertsDownBias;
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
    place.row = (group_heads + (is_key ? 0 : 1)) * config.head_size;
  }
}

// The place in a tensor that has the parameters of `layer` layers before this
// one, without the tensor's name and its dimension of layers.
PiecePlace PlaceAfter(int64_t layer, const ModelConfig& config,
                      const LlamaParameter& parameter,
                      const HuggingFacePiece& piece) {
  PiecePlace place = {.shape = parameter.shape, .row = piece.target_row};
  int64_t rows = parameter.shape[0];
  if (parameter.part == LlamaPart::kQkv ||
      parameter.part == LlamaPart::kQkvBias) {
    PlaceInGroups(config, piece, place);
  } else if (parameter.part == LlamaPart::kLatentDown) {  // Separate tensors.
    rows = place.shape[0] = piece.rows;
    place.row = 0;
  } else if (IsOfExperts(parameter.part)) {
    place.shape[0] /= config.mixture.experts;
    place.block = place.stride = place.shape[0];
    place.shape.insert(place.shape.begin(), config.mixture.experts);
  }
  place.row += layer * rows;
  return place;
}

// Adds the names of a module's states, one for each index of the dimensions
// that are layers and experts.
void AddStates(std::string_view module, const std::vector<int64_t>& counts,
               std::vector<std::string>& names) {
  const int64_t first = counts.empty() ? 1 : counts[0];
  const int64_t second = counts.size() < 2 ? 1 : counts[1];
  const std::string all = counts.empty() ? "1" : absl::StrJoin(counts, ".");
  for (int64_t i = 0; i < first * second; ++i) {
    names.push_back(absl::StrCat(module, "._extra_state/shard_", i / second));
    if (counts.size() == 2) absl::StrAppend(&names.back(), ".", i % second);
    absl::StrAppend(&names.back(), "_", all);
  }
}

}  // namespace

absl::Status CheckMegatron(const ModelConfig& config) {
  const ArchitectureTraits& traits = config.traits();
  std::string_view other;
  if (traits.output_norms) {
    other = "norms of outputs";
  } else if (traits.fused_projections) {
    other = "fused projections";
  } else if (!config.latent.interleaved) {
    other = "latent attention without rope_interleave";
  } else if (config.output_bias != traits.mixture.like_gpt_oss) {
    other = "biases of the attention's output or of experts alone";
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      traits.title, " models with ", other,
      " have no counterpart in Megatron-LM's torch_dist checkpoints; use "
      "safetensors or dcp"));
}

MegatronLayers MegatronLayersOf(const ModelConfig& config) {
  const bool has_kinds =
      config.mixture.experts > 0 && config.mixture.dense_layers > 0;
  return has_kinds ? MegatronLayers::kApart : MegatronLayers::kInOneTensor;
}

std::vector<PiecePlace> MegatronPlaces(const ModelConfig& config,
                                       const LlamaParameter& parameter,
                                       const HuggingFacePiece& piece,
                                       MegatronLayers layers) {
  const bool is_layer = parameter.layer >= 0;
  const bool is_one = is_layer && layers == MegatronLayers::kInOneTensor;
  PiecePlace place =
      PlaceAfter(is_one ? parameter.layer : 0, config, parameter, piece);
  if (is_one) place.shape.insert(place.shape.begin(), config.layers);
  const std::string prefix =
      is_one     ? "decoder.layers."
      : is_layer ? absl::StrCat("decoder.layers.", parameter.layer, ".")
                 : "";
  std::vector<PiecePlace> places;
  for (const Row& row : kRows) {
    if (row.part == parameter.part &&
        absl::StrContains(piece.name, row.source)) {
      place.name = absl::StrCat(prefix, row.name);
      places.push_back(place);
    }
  }
  return places;
}

MegatronContents MegatronContentsOf(const ModelConfig& config,
                                    ElementType type) {
  const MegatronLayers layers = MegatronLayersOf(config);
  MegatronContents contents;
  absl::flat_hash_set<std::string> names;
  const auto add = [&](const LlamaParameter& parameter, PiecePlace& place) {
    if (!names.insert(place.name).second) return;
    const std::vector<int64_t> counts(
        place.shape.begin(), place.shape.end() - parameter.shape.size());
    std::vector<std::string> modules = {
        place.name.substr(0, place.name.rfind('.'))};
    // The product before the output has no weights.
    if (parameter.part == LlamaPart::kAttentionOutput) {
      modules.push_back(absl::StrCat(
          modules[0].substr(0, modules[0].rfind('.')), ".core_attention"));
    }
    for (const std::string& module : modules) {
      if (!names.insert(module).second) continue;
      AddStates(module, counts, contents.objects);
    }
    contents.tensors.push_back({.name = std::move(place.name),
                                .type = type,
                                .shape = std::move(place.shape)});
  };
  for (const LlamaParameter& parameter : LlamaParameters(config)) {
    for (const HuggingFacePiece& piece : parameter.pieces) {
      for (PiecePlace& place :
           MegatronPlaces(config, parameter, piece, layers)) {
        add(parameter, place);
      }
    }
  }
  return contents;
}

}  // namespace tessera::model_files
