#include "tools/model_files/llama_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/model_files/architectures.h"

namespace tessera::model_files {
namespace {

// A whole Hugging Face tensor.
struct Source {
  std::string name;
  int64_t rows;
};

std::string HuggingFaceName(std::string_view name, int64_t layer) {
  return layer < 0 ? std::string(name)
                   : absl::StrCat("model.layers.", layer, ".", name);
}

// The Hugging Face tensors of all experts, in order.
std::vector<Source> SourcesOfExperts(const ModelConfig& config,
                                     LlamaPart part) {
  const MixtureConfig& mixture = config.mixture;
  const MixtureTraits& names = config.traits().mixture;
  const auto name = [&](int64_t expert, std::string_view projection) {
    return absl::StrCat(names.module, ".experts.", expert, ".", projection,
                        ".weight");
  };
  std::vector<Source> sources;
  for (int64_t expert = 0; expert < mixture.experts; ++expert) {
    if (part == LlamaPart::kExpertsDown) {
      sources.push_back({name(expert, names.down), config.hidden});
      continue;
    }
    sources.push_back({name(expert, names.gate), mixture.intermediate});
    sources.push_back({name(expert, names.up), mixture.intermediate});
  }
  return sources;
}

// The tensor of all experts of GPT-OSS; nullopt for other parts and models.
std::optional<StackedExperts> StackOf(const ModelConfig& config,
                                      LlamaPart part) {
  if (!config.traits().mixture.like_gpt_oss) return std::nullopt;
  const MixtureConfig& mixture = config.mixture;
  const int64_t units = mixture.intermediate;
  switch (part) {
    case LlamaPart::kExpertsGateUp:
      return StackedExperts{mixture.experts, 2 * units, config.hidden, true};
    case LlamaPart::kExpertsGateUpBias:
      return StackedExperts{mixture.experts, 2 * units, 0, true};
    case LlamaPart::kExpertsDown:
      return StackedExperts{mixture.experts, config.hidden, units};
    case LlamaPart::kExpertsDownBias:
      return StackedExperts{mixture.experts, config.hidden, 0};
    default:
      return std::nullopt;
  }
}

// The Hugging Face tensors of a part.
std::vector<Source> SourcesOf(const ModelConfig& config, LlamaPart part) {
  const bool is_fused = config.traits().fused_projections;
  switch (part) {
    case LlamaPart::kEmbedding:
      return {{"model.embed_tokens.weight", config.vocabulary}};
    case LlamaPart::kAttentionNorm:
      return {{"input_layernorm.weight", config.hidden}};
    case LlamaPart::kQkv:
      if (is_fused) {
        return {{"self_attn.qkv_proj.weight",
                 config.QueryRows() + 2 * config.KvRows()}};
      }
      return {{"self_attn.q_proj.weight", config.QueryRows()},
              {"self_attn.k_proj.weight", config.KvRows()},
              {"self_attn.v_proj.weight", config.KvRows()}};
    case LlamaPart::kQkvBias:
      return {{"self_attn.q_proj.bias", config.QueryRows()},
              {"self_attn.k_proj.bias", config.KvRows()},
              {"self_attn.v_proj.bias", config.KvRows()}};
    case LlamaPart::kAttentionOutput:
      return {{"self_attn.o_proj.weight", config.hidden}};
    case LlamaPart::kAttentionOutputBias:
      return {{"self_attn.o_proj.bias", config.hidden}};
    case LlamaPart::kLatentDown: {
      std::vector<Source> sources;
      if (config.latent.query_rank > 0) {
        sources.push_back(
            {"self_attn.q_a_proj.weight", config.latent.query_rank});
      }
      sources.push_back({"self_attn.kv_a_proj_with_mqa.weight",
                         config.latent.kv_rank + config.latent.rope});
      return sources;
    }
    case LlamaPart::kQueryUp:
      return {{config.latent.query_rank > 0 ? "self_attn.q_b_proj.weight"
                                            : "self_attn.q_proj.weight",
               config.QueryRows()}};
    case LlamaPart::kKvUp:
      return {{"self_attn.kv_b_proj.weight",
               config.heads * (config.latent.nope + config.latent.value)}};
    case LlamaPart::kQueryNorm:
      if (config.IsLatent()) {
        return {{"self_attn.q_a_layernorm.weight", config.latent.query_rank}};
      }
      return {{"self_attn.q_norm.weight", config.traits().shared_qk_norm
                                              ? config.QueryRows()
                                              : config.head_size}};
    case LlamaPart::kKeyNorm:
      if (config.IsLatent()) {
        return {{"self_attn.kv_a_layernorm.weight", config.latent.kv_rank}};
      }
      return {{"self_attn.k_norm.weight", config.traits().shared_qk_norm
                                              ? config.KvRows()
                                              : config.head_size}};
    case LlamaPart::kSinks:
      return {{"self_attn.sinks", config.heads}};
    case LlamaPart::kAttentionOutputNorm:
      return {{"post_attention_layernorm.weight", config.hidden}};
    case LlamaPart::kMlpNorm:
      return {{config.traits().output_norms ? "pre_feedforward_layernorm.weight"
                                            : "post_attention_layernorm.weight",
               config.hidden}};
    case LlamaPart::kMlpOutputNorm:
      return {{"post_feedforward_layernorm.weight", config.hidden}};
    case LlamaPart::kGateUp:
      if (is_fused) {
        return {{"mlp.gate_up_proj.weight", 2 * config.intermediate}};
      }
      return {{"mlp.gate_proj.weight", config.intermediate},
              {"mlp.up_proj.weight", config.intermediate}};
    case LlamaPart::kDown:
      return {{"mlp.down_proj.weight", config.hidden}};
    case LlamaPart::kRouter:
      return {{absl::StrCat(config.traits().mixture.module, ".",
                            config.traits().mixture.router, ".weight"),
               config.mixture.experts}};
    case LlamaPart::kRouterBias:
      return {{"mlp.gate.e_score_correction_bias", config.mixture.experts}};
    case LlamaPart::kRouterLogitBias:
      return {{"mlp.router.bias", config.mixture.experts}};
    case LlamaPart::kExpertsGateUp:
    case LlamaPart::kExpertsDown:
    case LlamaPart::kExpertsGateUpBias:
    case LlamaPart::kExpertsDownBias:
      if (const auto stack = StackOf(config, part)) {
        const bool is_down = part == LlamaPart::kExpertsDown ||
                             part == LlamaPart::kExpertsDownBias;
        return {{absl::StrCat("mlp.experts.",
                              is_down ? "down_proj" : "gate_up_proj",
                              stack->columns == 0 ? "_bias" : ""),
                 stack->experts * stack->rows}};
      }
      return SourcesOfExperts(config, part);
    case LlamaPart::kSharedGateUp:
      return {{"mlp.shared_experts.gate_proj.weight",
               config.mixture.shared_intermediate},
              {"mlp.shared_experts.up_proj.weight",
               config.mixture.shared_intermediate}};
    case LlamaPart::kSharedDown:
      return {{"mlp.shared_experts.down_proj.weight", config.hidden}};
    case LlamaPart::kFinalNorm:
      return {{"model.norm.weight", config.hidden}};
    case LlamaPart::kHead:
      return {{"lm_head.weight", config.vocabulary}};
  }
  return {};
}

// By LlamaPart.
constexpr std::array<std::string_view, 28> kPartNames = {
    "embedding.weight",
    "attention_norm.weight",
    "attention.qkv.weight",
    "attention.qkv.bias",
    "attention.output.weight",
    "attention.output.bias",
    "attention.query_norm.weight",
    "attention.key_norm.weight",
    "attention.sinks",
    "attention_output_norm.weight",
    "mlp_norm.weight",
    "mlp.gate_up.weight",
    "mlp.down.weight",
    "mlp.router.weight",
    "mlp.router.bias",
    "mlp.router.logit_bias",
    "mlp.experts.gate_up.weight",
    "mlp.experts.gate_up.bias",
    "mlp.experts.down.weight",
    "mlp.experts.down.bias",
    "mlp.shared.gate_up.weight",
    "mlp.shared.down.weight",
    "mlp_output_norm.weight",
    "attention.latent_down.weight",
    "attention.query_up.weight",
    "attention.kv_up.weight",
    "head.norm.weight",
    "head.output.weight"};

std::string_view PartName(LlamaPart part) {
  return kPartNames[static_cast<size_t>(part)];
}

bool IsNorm(LlamaPart part) {
  return absl::EndsWith(PartName(part), "norm.weight");
}

// The second dimension; 0 for vectors.
int64_t ColumnsOf(const ModelConfig& config, LlamaPart part) {
  if (IsNorm(part) || !absl::EndsWith(PartName(part), ".weight")) return 0;
  switch (part) {
    case LlamaPart::kAttentionOutput:
      return config.OutputColumns();
    case LlamaPart::kQueryUp:
      return config.QueryInputs();
    case LlamaPart::kKvUp:
      return config.latent.kv_rank;
    case LlamaPart::kDown:
      return config.intermediate;
    case LlamaPart::kExpertsDown:
      return config.mixture.intermediate;
    case LlamaPart::kSharedDown:
      return config.mixture.shared_intermediate;
    default:
      return config.hidden;
  }
}

bool InLayer(LlamaPart part) {
  return part > LlamaPart::kEmbedding && part < LlamaPart::kFinalNorm;
}

// The order of modules in transformers' LlamaDecoderLayer.
constexpr LlamaPart kHuggingFaceLayerParts[] = {
    LlamaPart::kQkv,           LlamaPart::kAttentionOutput,
    LlamaPart::kSinks,         LlamaPart::kLatentDown,
    LlamaPart::kQueryUp,       LlamaPart::kKvUp,
    LlamaPart::kQueryNorm,     LlamaPart::kKeyNorm,
    LlamaPart::kGateUp,        LlamaPart::kDown,
    LlamaPart::kRouter,        LlamaPart::kRouterBias,
    LlamaPart::kExpertsGateUp, LlamaPart::kExpertsDown,
    LlamaPart::kSharedGateUp,  LlamaPart::kSharedDown,
    LlamaPart::kAttentionNorm, LlamaPart::kAttentionOutputNorm,
    LlamaPart::kMlpNorm,       LlamaPart::kMlpOutputNorm};

bool Has(const ModelConfig& config, LlamaPart part, int64_t layer) {
  const bool is_mixture = config.IsMixture(layer);
  switch (part) {
    case LlamaPart::kQkv:
      return !config.IsLatent();
    case LlamaPart::kLatentDown:
    case LlamaPart::kQueryUp:
    case LlamaPart::kKvUp:
      return config.IsLatent();
    case LlamaPart::kQueryNorm:
      return config.traits().qk_norm || config.latent.query_rank > 0;
    case LlamaPart::kKeyNorm:
      return config.traits().qk_norm || config.IsLatent();
    case LlamaPart::kSinks:
      return config.traits().sinks;
    case LlamaPart::kAttentionNorm:
    case LlamaPart::kMlpNorm:
      return config.traits().input_norms;
    case LlamaPart::kAttentionOutputNorm:
    case LlamaPart::kMlpOutputNorm:
      return config.traits().output_norms;
    case LlamaPart::kGateUp:
    case LlamaPart::kDown:
      return !is_mixture;
    case LlamaPart::kRouter:
    case LlamaPart::kExpertsGateUp:
    case LlamaPart::kExpertsDown:
      return is_mixture;
    case LlamaPart::kRouterBias:
      return is_mixture && config.traits().mixture.sigmoid;
    case LlamaPart::kSharedGateUp:
    case LlamaPart::kSharedDown:
      return is_mixture && config.mixture.shared_intermediate > 0;
    default:
      return true;
  }
}

// The bias that belongs to a weight, if the model has it.
std::optional<LlamaPart> BiasOf(const ModelConfig& config, LlamaPart part) {
  if (part == LlamaPart::kQkv && config.qkv_bias) return LlamaPart::kQkvBias;
  if (part == LlamaPart::kAttentionOutput && config.output_bias) {
    return LlamaPart::kAttentionOutputBias;
  }
  if (!config.traits().mixture.like_gpt_oss) return std::nullopt;
  if (part == LlamaPart::kRouter) return LlamaPart::kRouterLogitBias;
  if (part == LlamaPart::kExpertsGateUp) return LlamaPart::kExpertsGateUpBias;
  if (part == LlamaPart::kExpertsDown) return LlamaPart::kExpertsDownBias;
  return std::nullopt;
}

}  // namespace

bool IsAttentionMatrix(LlamaPart part) {
  return part == LlamaPart::kQkv || part == LlamaPart::kAttentionOutput ||
         part == LlamaPart::kLatentDown || part == LlamaPart::kQueryUp ||
         part == LlamaPart::kKvUp;
}

bool IsMlpMatrix(LlamaPart part) {
  return part == LlamaPart::kGateUp || part == LlamaPart::kDown ||
         part == LlamaPart::kExpertsGateUp || part == LlamaPart::kExpertsDown ||
         part == LlamaPart::kSharedGateUp || part == LlamaPart::kSharedDown;
}

std::string LlamaParameterName(LlamaPart part, int64_t layer) {
  if (!InLayer(part)) return std::string(PartName(part));
  return absl::StrCat("layers.", layer, ".", PartName(part));
}

LlamaParameter MakeLlamaParameter(const ModelConfig& config, LlamaPart part,
                                  int64_t layer) {
  LlamaParameter parameter;
  parameter.part = part;
  parameter.layer = InLayer(part) ? layer : -1;
  parameter.name = LlamaParameterName(part, layer);
  if (IsNorm(part)) parameter.offset = config.traits().norm_offset;
  int64_t rows = 0;
  for (const Source& source : SourcesOf(config, part)) {
    parameter.pieces.push_back({HuggingFaceName(source.name, parameter.layer),
                                /*source_row=*/0, rows, source.rows});
    rows += source.rows;
  }
  parameter.shape = {rows};
  const int64_t columns = ColumnsOf(config, part);
  if (columns > 0) parameter.shape.push_back(columns);
  parameter.stack = StackOf(config, part);
  return parameter;
}

std::vector<LlamaPart> LayerPartsOf(const ModelConfig& config, int64_t layer) {
  std::vector<LlamaPart> parts;
  for (const LlamaPart part :
       {LlamaPart::kAttentionNorm, LlamaPart::kQkv,
        LlamaPart::kLatentDown,    LlamaPart::kQueryUp,
        LlamaPart::kKvUp,          LlamaPart::kAttentionOutput,
        LlamaPart::kSinks,         LlamaPart::kQueryNorm,
        LlamaPart::kKeyNorm,       LlamaPart::kAttentionOutputNorm,
        LlamaPart::kMlpNorm,       LlamaPart::kGateUp,
        LlamaPart::kDown,          LlamaPart::kRouter,
        LlamaPart::kRouterBias,    LlamaPart::kExpertsGateUp,
        LlamaPart::kExpertsDown,   LlamaPart::kSharedGateUp,
        LlamaPart::kSharedDown,    LlamaPart::kMlpOutputNorm}) {
    if (!Has(config, part, layer)) continue;
    parts.push_back(part);
    const std::optional<LlamaPart> bias = BiasOf(config, part);
    if (bias.has_value()) parts.push_back(*bias);
  }
  return parts;
}

std::vector<LlamaParameter> LlamaParameters(const ModelConfig& config) {
  std::vector<LlamaParameter> parameters;
  const auto add = [&](LlamaPart part, int64_t layer = -1) {
    parameters.push_back(MakeLlamaParameter(config, part, layer));
  };
  add(LlamaPart::kEmbedding);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const LlamaPart part : LayerPartsOf(config, layer)) add(part, layer);
  }
  add(LlamaPart::kFinalNorm);
  if (!config.tied_embeddings) add(LlamaPart::kHead);
  return parameters;
}

std::vector<HuggingFacePiece> PiecesOfRows(const LlamaParameter& parameter,
                                           int64_t begin, int64_t end) {
  std::vector<HuggingFacePiece> pieces;
  for (const HuggingFacePiece& piece : parameter.pieces) {
    const int64_t first = std::max(begin, piece.target_row);
    const int64_t last = std::min(end, piece.target_row + piece.rows);
    if (first >= last) continue;
    pieces.push_back({piece.name, piece.source_row + first - piece.target_row,
                      first, last - first});
  }
  return pieces;
}

PiecePlace HuggingFacePlace(const LlamaParameter& parameter,
                            const HuggingFacePiece& piece) {
  PiecePlace place = {
      .name = piece.name, .shape = parameter.shape, .stack = parameter.stack};
  place.shape[0] = piece.rows;
  if (place.stack) place.shape = place.stack->FileShape();
  return place;
}

std::vector<StoredTensor> HuggingFaceTensors(const ModelConfig& config,
                                             ElementType type) {
  std::vector<StoredTensor> tensors;
  const auto add_piece = [&](const LlamaParameter& parameter, size_t i) {
    PiecePlace place = HuggingFacePlace(parameter, parameter.pieces[i]);
    tensors.push_back({std::move(place.name), type, std::move(place.shape)});
  };
  // A projection's bias follows its weight.
  const auto add = [&](LlamaPart part, int64_t layer = -1) {
    const LlamaParameter weight = MakeLlamaParameter(config, part, layer);
    const std::optional<LlamaPart> bias = BiasOf(config, part);
    for (size_t i = 0; i < weight.pieces.size(); ++i) {
      add_piece(weight, i);
      if (!bias.has_value()) continue;
      add_piece(MakeLlamaParameter(config, *bias, layer), i);
    }
  };
  add(LlamaPart::kEmbedding);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const LlamaPart part : kHuggingFaceLayerParts) {
      if (Has(config, part, layer)) add(part, layer);
    }
  }
  add(LlamaPart::kFinalNorm);
  if (!config.tied_embeddings) add(LlamaPart::kHead);
  return tensors;
}

}  // namespace tessera::model_files
