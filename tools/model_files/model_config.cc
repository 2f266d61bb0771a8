#include "tools/model_files/model_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/status_macros.h"
#include "tools/model_files/architectures.h"

namespace tessera::model_files {

namespace {

constexpr int64_t kMostVocabulary = (int64_t{1} << 31) - 1;
constexpr int64_t kMostHidden = int64_t{1} << 20;
constexpr int64_t kMostIntermediate = int64_t{1} << 22;
constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostGroups = 64;  // kMostRouterGroups of op::Route.

absl::Status CheckRange(std::string_view name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be from 1 to ", most));
}

absl::Status CheckReal(std::string_view name, double value, double least,
                       bool least_allowed, double most) {
  const bool above = least_allowed ? value >= least : value > least;
  if (above && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be ",
                   least_allowed ? "from " : "above ", least, " to ", most));
}

absl::Status CheckHeads(const ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("heads (num_attention_heads)", config.heads, kMostHidden));
  TESSERA_RETURN_IF_ERROR(CheckRange("kv_heads (num_key_value_heads)",
                                     config.kv_heads, config.heads));
  TESSERA_RETURN_IF_ERROR(CheckRange("head_size (head_dim)", config.head_size,
                                     kMostHidden / config.heads));
  if (config.heads % config.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_heads (num_key_value_heads) is ", config.kv_heads,
        "; it must divide heads (num_attention_heads), ", config.heads));
  }
  if (!config.IsLatent() && config.head_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_size (head_dim) is ", config.head_size,
                     "; it must be even, for rotary positions turn pairs"));
  }
  return absl::OkStatus();
}

absl::Status CheckLatent(const ModelConfig& config) {
  const LatentConfig& latent = config.latent;
  const ArchitectureTraits& traits = config.traits();
  if (traits.latent.kv_rank == 0) {
    if (latent == LatentConfig()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "latent is given; ", traits.title, " has no latent attention"));
  }
  if (latent.query_rank != 0) {
    TESSERA_RETURN_IF_ERROR(CheckRange("latent.query_rank (q_lora_rank)",
                                       latent.query_rank, kMostHidden));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckRange("latent.kv_rank (kv_lora_rank)", latent.kv_rank, kMostHidden));
  TESSERA_RETURN_IF_ERROR(CheckRange("latent.nope (qk_nope_head_dim)",
                                     latent.nope, config.head_size));
  TESSERA_RETURN_IF_ERROR(CheckRange("latent.rope (qk_rope_head_dim)",
                                     latent.rope, config.head_size));
  TESSERA_RETURN_IF_ERROR(CheckReal("latent.score_mscale (mscale_all_dim)",
                                    latent.score_mscale, 0, true, 1e3));
  const auto refuse = [](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat(text...));
  };
  if (latent.rope % 2 != 0) {
    return refuse("latent.rope (qk_rope_head_dim) is ", latent.rope,
                  "; it must be even, for rotary positions turn pairs");
  }
  if (config.head_size != latent.nope + latent.rope) {
    return refuse("head_size is ", config.head_size, "; it must be the sum of ",
                  latent.nope, " (qk_nope_head_dim) and ", latent.rope,
                  " (qk_rope_head_dim)");
  }
  if (latent.value < 1 || latent.value > config.head_size) {
    return refuse("latent.value (v_head_dim) is ", latent.value,
                  "; it must be from 1 to ", config.head_size,
                  ", the size of a head of queries (qk_nope_head_dim + "
                  "qk_rope_head_dim)");
  }
  if (config.kv_heads != config.heads) {
    return refuse("kv_heads (num_key_value_heads) is ", config.kv_heads,
                  "; with latent attention it must be heads "
                  "(num_attention_heads), ",
                  config.heads);
  }
  if (!latent.interleaved && !traits.latent.has_interleave) {
    return refuse("latent.interleaved (rope_interleave) is false; that of ",
                  traits.title, " must be true");
  }
  return absl::OkStatus();
}

// Layers in ascending order from `least` on.
absl::Status CheckLayers(std::string_view name,
                         const std::vector<int64_t>& layers, int64_t least,
                         int64_t end) {
  for (const int64_t layer : layers) {
    if (layer < least || layer >= end) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has ", layer,
                                                     "; it must ascend from ",
                                                     least, ", below ", end));
    }
    least = layer + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckWindow(const ModelConfig& config) {
  constexpr int64_t kMostWindow = (int64_t{1} << 31) - 1;
  const ArchitectureTraits& traits = config.traits();
  const bool allowed = traits.windows.allowed;
  if (config.window < 0 || config.window > (allowed ? kMostWindow : 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "window (sliding_window) is ", config.window, "; it must ",
        allowed ? absl::StrCat("be from 0 to ", kMostWindow)
                : absl::StrCat("be 0, ", traits.title, " has none")));
  }
  const bool by_layer = config.window > 0 && traits.windows.by_layer;
  const int64_t most = by_layer ? config.layers - 1 : int64_t{0};
  if (config.window_begin < 0 || config.window_begin > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("window_begin (max_window_layers) is ",
                     config.window_begin, "; it must be from 0 to ", most));
  }
  return CheckLayers("full_layers (layer_types)", config.full_layers,
                     config.window_begin + 1, by_layer ? config.layers : 0);
}

absl::Status CheckRotary(const ModelConfig& config) {
  using tensor_parallel::RotaryScaling;
  const ArchitectureTraits& traits = config.traits();
  const auto refuse = [&](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat(text...));
  };
  TESSERA_RETURN_IF_ERROR(
      CheckReal("rope_theta", config.rotary.base, 0, false, 1e15));
  TESSERA_RETURN_IF_ERROR(config.rotary.Validate(config.RotarySize()),
                          Annotate(_, "rope_scaling"));
  if (!traits.rope.partial && config.rotary.partial != 1) {
    return refuse("partial_rotary_factor is ", config.rotary.partial, "; ",
                  traits.title, " turns whole heads: it must be 1");
  }
  const RotaryScaling scaling = config.rotary.scaling;
  if (traits.rope.original_positions > 0 && scaling != RotaryScaling::kNone &&
      scaling != RotaryScaling::kLongRope) {
    return refuse("rope_scaling is not longrope, the only one of ",
                  traits.title);
  }
  if (config.local_rotary.has_value() != (traits.rope.local_theta > 0)) {
    return refuse("local_rotary (rope_local_base_freq) is ",
                  config.local_rotary.has_value() ? "given" : "missing", "; ",
                  traits.title, " has ",
                  traits.rope.local_theta > 0 ? "one" : "none");
  }
  if (config.local_rotary.has_value()) {
    TESSERA_RETURN_IF_ERROR(config.local_rotary->Validate(config.head_size),
                            Annotate(_, "local_rotary"));
  }
  return CheckLayers("no_rope_layers", config.no_rope_layers, 0,
                     traits.rope.no_rope_interval > 0 ? config.layers : 0);
}

absl::Status CheckScores(const ModelConfig& config) {
  const ScoreTraits& scores = config.traits().scores;
  constexpr double kMost = 1e6;
  TESSERA_RETURN_IF_ERROR(CheckReal("score_scalar (query_pre_attn_scalar)",
                                    config.score_scalar, 0, scores.scalar == 0,
                                    scores.scalar == 0 ? 0 : kMost));
  TESSERA_RETURN_IF_ERROR(CheckReal("attention_cap (attn_logit_softcapping)",
                                    config.attention_cap, 0, true,
                                    scores.has_attention_cap ? kMost : 0));
  return CheckReal("final_cap (final_logit_softcapping)", config.final_cap, 0,
                   true, scores.has_final_cap ? kMost : 0);
}

absl::Status CheckBiases(const ModelConfig& config) {
  const ArchitectureTraits& traits = config.traits();
  const bool qkv = config.qkv_bias, output = config.output_bias;
  const auto allow = [&](bool allowed, std::string_view which) {
    if (allowed) return absl::OkStatus();
    const auto text = [](bool has) { return has ? "true" : "false"; };
    return absl::InvalidArgumentError(
        absl::StrCat("qkv_bias is ", text(qkv), " and output_bias ",
                     text(output), "; ", traits.title, " has ", which));
  };
  switch (traits.biases) {
    case AttentionBiases::kChosen:
      return allow(qkv == output, "both (attention_bias) or none");
    case AttentionBiases::kNone:
      return allow(!qkv && !output, "none");
    case AttentionBiases::kQkv:
      return allow(qkv && !output, "qkv_bias alone");
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const MixtureConfig& m,
                         const ArchitectureTraits& traits) {
  const auto refuse = [](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat(text...));
  };
  if (m.groups == 1 && m.groups_per_token == 1) return absl::OkStatus();
  const int64_t terms = traits.mixture.group_terms;
  if (terms == 0) {
    return refuse("groups (n_group) is ", m.groups, " and groups_per_token ",
                  "(topk_group) ", m.groups_per_token, "; those of ",
                  traits.title, " must be 1");
  }
  const int64_t most = std::min(kMostGroups, m.experts / terms);
  if (m.groups < 1 || m.groups > most || m.experts % m.groups != 0) {
    return refuse("groups (n_group) is ", m.groups, "; it must divide the ",
                  m.experts, " experts, from 1 to ", most);
  }
  const int64_t size = m.experts / m.groups;
  const int64_t least = (m.per_token + size - 1) / size;
  if (m.groups_per_token < least || m.groups_per_token > m.groups) {
    return refuse("groups_per_token (topk_group) is ", m.groups_per_token,
                  "; it must be from ", least, ", for ", m.per_token,
                  " experts of a token, to the number of groups, ", m.groups);
  }
  return absl::OkStatus();
}

absl::Status CheckMixture(const ModelConfig& config) {
  const MixtureConfig& m = config.mixture;
  const ArchitectureTraits& traits = config.traits();
  if (traits.mixture.experts == nullptr) {
    if (m == MixtureConfig()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("mixture is given; ", traits.title, " has no experts"));
  }
  constexpr int64_t kMostExperts = 4096;
  TESSERA_RETURN_IF_ERROR(CheckRange("experts", m.experts, kMostExperts));
  TESSERA_RETURN_IF_ERROR(CheckRange("experts of a token (num_experts_per_tok)",
                                     m.per_token, m.experts));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("intermediate of an expert (moe_intermediate_size)",
                 m.intermediate, kMostIntermediate));
  const bool like_deepseek = traits.mixture.like_deepseek;
  const auto refuse = [](std::string_view text) {
    return absl::InvalidArgumentError(text);
  };
  if (m.shared_intermediate < 0 || m.shared_intermediate > kMostIntermediate ||
      (!like_deepseek && m.shared_intermediate > 0)) {
    return refuse(absl::StrCat(
        "shared_intermediate is ", m.shared_intermediate, "; it must be ",
        like_deepseek
            ? absl::StrCat("from 0 to ", kMostIntermediate)
            : absl::StrCat("0, ", traits.title, " has no shared expert")));
  }
  if (m.dense_layers < 0 ||
      m.dense_layers > (like_deepseek ? config.layers : 0)) {
    return refuse(absl::StrCat("dense_layers (first_k_dense_replace) is ",
                               m.dense_layers, "; it must be from 0 to ",
                               like_deepseek ? config.layers : 0));
  }
  if (traits.mixture.never_normalised && m.normalise) {
    return refuse(absl::StrCat("normalise (norm_topk_prob) is true; that of ",
                               traits.title, " must be false"));
  }
  TESSERA_RETURN_IF_ERROR(CheckGroups(m, traits));
  if (traits.mixture.normalise == nullptr && !m.normalise) {
    return refuse(absl::StrCat("the weights of the experts of ", traits.title,
                               " are normalised"));
  }
  if (!like_deepseek && m.scale != 1) {
    return refuse(absl::StrCat("scale (routed_scaling_factor) is ", m.scale,
                               "; ", traits.title, " has none: it must be 1"));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckReal("scale (routed_scaling_factor)", m.scale, 0, false, 1e6));
  if (like_deepseek && m.shared_intermediate % m.intermediate != 0) {
    return refuse(absl::StrCat("shared_intermediate is ", m.shared_intermediate,
                               "; it must be a multiple of that of an expert, ",
                               m.intermediate));
  }
  return CheckReal("balance (router_aux_loss_coef)", m.balance, 0, true, 1e6);
}

}  // namespace

absl::Status ModelConfig::ValidateLayerCount() const {
  return CheckRange("layers (num_hidden_layers)", layers, kMostLayers);
}

absl::Status ModelConfig::Validate() const {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("vocabulary (vocab_size)", vocabulary, kMostVocabulary));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("hidden (hidden_size)", hidden, kMostHidden));
  TESSERA_RETURN_IF_ERROR(CheckRange("intermediate (intermediate_size)",
                                     intermediate, kMostIntermediate));
  TESSERA_RETURN_IF_ERROR(ValidateLayerCount());
  TESSERA_RETURN_IF_ERROR(CheckHeads(*this));
  TESSERA_RETURN_IF_ERROR(CheckLatent(*this));
  TESSERA_RETURN_IF_ERROR(CheckRange("max_positions (max_position_embeddings)",
                                     max_positions, kMostVocabulary));
  TESSERA_RETURN_IF_ERROR(CheckRotary(*this));
  TESSERA_RETURN_IF_ERROR(CheckBiases(*this));
  TESSERA_RETURN_IF_ERROR(CheckScores(*this));
  TESSERA_RETURN_IF_ERROR(CheckWindow(*this));
  TESSERA_RETURN_IF_ERROR(CheckMixture(*this));
  TESSERA_RETURN_IF_ERROR(
      CheckReal("norm_epsilon (rms_norm_eps)", norm_epsilon, 0, false, 1));
  return CheckReal("initializer_range", initializer_range, 0, true, 100);
}

double ModelConfig::ScoreScale() const {
  const double scale =
      1 / std::sqrt(score_scalar > 0 ? score_scalar
                                     : static_cast<double>(head_size));
  const bool is_scaled =
      rotary.scaling == tensor_parallel::RotaryScaling::kYarn &&
      rotary.factor > 1;
  if (latent.score_mscale == 0 || !is_scaled) return scale;
  const double mscale = 0.1 * latent.score_mscale * std::log(rotary.factor) + 1;
  return scale * mscale * mscale;
}

int64_t ModelConfig::AttentionMatrixSize() const {
  if (!IsLatent()) return hidden * (2 * QueryRows() + 2 * KvRows());
  return hidden * (LatentRows() + OutputColumns()) +
         QueryInputs() * QueryRows() +
         latent.kv_rank * heads * (latent.nope + latent.value);
}

int64_t ModelConfig::LayerMatrixSize(int64_t layer, int64_t experts) const {
  const int64_t attention = AttentionMatrixSize();
  if (!IsMixture(layer)) return attention + hidden * 3 * intermediate;
  return attention +
         hidden * (mixture.experts + 3 * (experts * mixture.intermediate +
                                          mixture.shared_intermediate));
}

int64_t ModelConfig::LayerParameterCount(int64_t layer) const {
  const ArchitectureTraits& own = traits();
  const int64_t heads_norms = own.shared_qk_norm ? QueryRows() + KvRows()
                              : own.qk_norm
                                  ? 2 * head_size
                                  : latent.query_rank + latent.kv_rank;
  const int64_t norms =
      hidden * ((own.input_norms ? 2 : 0) + (own.output_norms ? 2 : 0)) +
      heads_norms;
  const int64_t biases =
      (qkv_bias ? QueryRows() + 2 * KvRows() : 0) + (output_bias ? hidden : 0) +
      (IsMixture(layer) && own.mixture.sigmoid ? mixture.experts : 0);
  const int64_t of_experts =
      IsMixture(layer) && own.mixture.like_gpt_oss
          ? mixture.experts * (1 + 2 * mixture.intermediate + hidden)
          : 0;
  return LayerMatrixSize(layer, mixture.experts) + norms + biases + of_experts +
         (own.sinks ? heads : 0);
}

double ModelConfig::EmbeddingScale(DType dtype) const {
  if (!traits().scaled_embedding) return 1;
  const double scale = std::sqrt(static_cast<double>(hidden));
  if (dtype == DType::kF64) return scale;
  const auto rounded = static_cast<float>(scale);
  if (dtype == DType::kBF16) return static_cast<float>(BF16(rounded));
  if (dtype == DType::kF16) return static_cast<float>(F16(rounded));
  return rounded;
}

int64_t ModelConfig::ParameterCount() const {
  const int64_t tables = tied_embeddings ? 1 : 2;
  int64_t count = hidden * (tables * vocabulary + 1);
  for (int64_t layer = 0; layer < layers; ++layer) {
    count += LayerParameterCount(layer);
  }
  return count;
}

double ModelConfig::KeysPerQuery(int64_t sequence) const {
  const auto length = static_cast<double>(sequence);
  const double all = (length + 1) / 2;
  if (window == 0 || window >= sequence) return all;
  // The first `window` queries attend to fewer keys.
  const auto most = static_cast<double>(window);
  const double windowed = most * ((most + 1) / 2 + length - most) / length;
  const int64_t full = window_begin + static_cast<int64_t>(full_layers.size());
  const auto share =
      static_cast<double>(layers - full) / static_cast<double>(layers);
  return share * windowed + (1 - share) * all;
}

double ModelConfig::ForwardFlopsPerToken(int64_t sequence) const {
  int64_t weights = hidden * vocabulary;
  for (int64_t layer = 0; layer < layers; ++layer) {
    weights += LayerMatrixSize(layer, mixture.per_token);
  }
  // Scores take 2 * QueryRows() operations per key, weighted values 2 *
  // OutputColumns().
  const double keys = KeysPerQuery(sequence);
  const double attention =
      2.0 * static_cast<double>(layers * (QueryRows() + OutputColumns()));
  return 2 * static_cast<double>(weights) + attention * keys;
}

}  // namespace tessera::model_files
