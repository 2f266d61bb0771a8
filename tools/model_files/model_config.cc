#include "tools/model_files/model_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/quoted.h"
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
  const ArchitectureTraits& traits = TraitsOf(config.architecture);
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
  const ArchitectureTraits& traits = TraitsOf(config.architecture);
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
  const ArchitectureTraits& traits = TraitsOf(config.architecture);
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
  const ScoreTraits& scores = TraitsOf(config.architecture).scores;
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

// A field that its architecture determines.
absl::Status CheckFixed(const ModelConfig& config, std::string_view name,
                        bool value, bool fixed, std::string_view what) {
  if (value == fixed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value ? "true" : "false", "; ",
      TraitsOf(config.architecture).title, " has ", fixed ? "" : "no ", what));
}

absl::Status CheckNorms(const ModelConfig& config) {
  const ArchitectureTraits& traits = TraitsOf(config.architecture);
  TESSERA_RETURN_IF_ERROR(CheckFixed(config, "sinks", config.sinks,
                                     traits.sinks, "attention sinks"));
  TESSERA_RETURN_IF_ERROR(CheckFixed(config, "qk_norm", config.qk_norm,
                                     traits.qk_norm,
                                     "norms of the heads of queries and keys"));
  TESSERA_RETURN_IF_ERROR(CheckFixed(
      config, "shared_qk_norm", config.shared_qk_norm, traits.shared_qk_norm,
      "norms of all heads of queries or keys together"));
  TESSERA_RETURN_IF_ERROR(CheckFixed(config, "input_norms", config.input_norms,
                                     traits.input_norms,
                                     "norms before attention and MLP"));
  return CheckFixed(config, "output_norms", config.output_norms,
                    traits.output_norms,
                    "norms of the outputs of attention and MLP");
}

absl::Status CheckGates(const ModelConfig& config) {
  const ArchitectureTraits& traits = TraitsOf(config.architecture);
  const auto name = [](tensor_parallel::GluKind kind) {
    using tensor_parallel::GluKind;
    return kind == GluKind::kGeGlu        ? "GeGLU"
           : kind == GluKind::kClampedGlu ? "clamped GLU"
                                          : "SwiGLU";
  };
  if (config.glu != traits.glu) {
    return absl::InvalidArgumentError(absl::StrCat("glu is ", name(config.glu),
                                                   "; ", traits.title, " has ",
                                                   name(traits.glu)));
  }
  return CheckFixed(config, "scaled_embedding", config.scaled_embedding,
                    traits.scaled_embedding, "scaled embedding");
}

absl::Status CheckBiases(const ModelConfig& config) {
  const ArchitectureTraits& traits = TraitsOf(config.architecture);
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
  const ArchitectureTraits& traits = TraitsOf(config.architecture);
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
  if (m.sigmoid != traits.mixture.sigmoid) {
    return refuse(
        absl::StrCat("the scores of ", traits.title, " are ",
                     traits.mixture.sigmoid ? "sigmoids" : "softmaxes"));
  }
  if (m.biases != traits.mixture.like_gpt_oss) {
    return refuse(absl::StrCat("the router and the experts of ", traits.title,
                               m.biases ? " have no biases" : " have biases"));
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

absl::Status ModelConfig::Validate() const {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("vocabulary (vocab_size)", vocabulary, kMostVocabulary));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("hidden (hidden_size)", hidden, kMostHidden));
  TESSERA_RETURN_IF_ERROR(CheckRange("intermediate (intermediate_size)",
                                     intermediate, kMostIntermediate));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("layers (num_hidden_layers)", layers, kMostLayers));
  TESSERA_RETURN_IF_ERROR(CheckHeads(*this));
  TESSERA_RETURN_IF_ERROR(CheckLatent(*this));
  TESSERA_RETURN_IF_ERROR(CheckRange("max_positions (max_position_embeddings)",
                                     max_positions, kMostVocabulary));
  TESSERA_RETURN_IF_ERROR(CheckRotary(*this));
  TESSERA_RETURN_IF_ERROR(CheckBiases(*this));
  TESSERA_RETURN_IF_ERROR(CheckNorms(*this));
  TESSERA_RETURN_IF_ERROR(CheckScores(*this));
  TESSERA_RETURN_IF_ERROR(CheckGates(*this));
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
  const int64_t heads_norms = shared_qk_norm ? QueryRows() + KvRows()
                              : qk_norm      ? 2 * head_size
                                        : latent.query_rank + latent.kv_rank;
  const int64_t norms =
      hidden * ((input_norms ? 2 : 0) + (output_norms ? 2 : 0)) + heads_norms;
  const int64_t biases =
      (qkv_bias ? QueryRows() + 2 * KvRows() : 0) + (output_bias ? hidden : 0) +
      (IsMixture(layer) && mixture.sigmoid ? mixture.experts : 0);
  const int64_t of_experts =
      IsMixture(layer) && mixture.biases
          ? mixture.experts * (1 + 2 * mixture.intermediate + hidden)
          : 0;
  return LayerMatrixSize(layer, mixture.experts) + norms + biases + of_experts +
         (sinks ? heads : 0);
}

double ModelConfig::EmbeddingScale(DType dtype) const {
  if (!scaled_embedding) return 1;
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

namespace {

struct Preset {
  std::string_view name;
  ModelConfig config;
};

constexpr int64_t kByteVocabulary = 264;

// The factor of the rotation is 1: mscale and mscale_all_dim are equal.
tensor_parallel::RotaryFrequencies YarnOfDeepSeek() {
  return {.scaling = tensor_parallel::RotaryScaling::kYarn,
          .factor = 40,
          .low_turns = 1,
          .high_turns = 32,
          .original_positions = 4096};
}

// vocabulary, hidden, intermediate, layers, heads, kv_heads, head_size,
// {rope_theta, ...}, norm_epsilon, tied_embeddings, max_positions,
// initializer_range, architecture, qkv_bias, output_bias, qk_norm, window,
// window_begin, {experts, per_token, intermediate, ...}, glu, scaled_embedding
const std::vector<Preset>& Presets() {
  static const auto* const presets = new std::vector<Preset>{
      {"llama-1m",
       {kByteVocabulary, 128, 512, 4, 4, 2, 32, {1e4}, 1e-5, false, 1024}},
      // As many active parameters as llama-1m, apart from the routers.
      {"moe-3m",
       {kByteVocabulary,
        128,
        256,
        4,
        4,
        2,
        32,
        {1e4},
        1e-5,
        false,
        1024,
        0.02,
        Architecture::kMixtral,
        false,
        false,
        false,
        0,
        0,
        {8, 2, 256, 0, 0, false, true, 1, 0.001}}},
      {"llama-10m",
       {kByteVocabulary, 256, 832, 12, 8, 4, 32, {1e4}, 1e-5, false, 2048}},
      {"llama-50m",
       {kByteVocabulary, 512, 1536, 16, 8, 4, 64, {1e4}, 1e-5, false, 2048}},
      {"llama-125m",
       {32000, 768, 2048, 12, 12, 4, 64, {1e4}, 1e-5, false, 2048}},
      {"smollm2-135m",
       {49152, 576, 1536, 30, 9, 3, 64, {1e5}, 1e-5, true, 8192, 1.0 / 24}},
      {"smollm2-360m",
       {49152, 960, 2560, 32, 15, 5, 64, {1e5}, 1e-5, true, 8192}},
      {"qwen2.5-0.5b",
       {151936,
        896,
        4864,
        24,
        14,
        2,
        64,
        {1e6},
        1e-6,
        true,
        32768,
        0.02,
        Architecture::kQwen2,
        true}},
      {"qwen3-0.6b",
       {151936,
        1024,
        3072,
        28,
        16,
        8,
        128,
        {1e6},
        1e-6,
        true,
        40960,
        0.02,
        Architecture::kQwen3,
        false,
        false,
        true}},
      {"llama-1b",
       {32000, 2048, 5632, 22, 32, 4, 64, {1e4}, 1e-5, false, 2048}},
      {"llama3.2-1b",
       {128256,
        2048,
        8192,
        16,
        32,
        8,
        64,
        {5e5, tensor_parallel::RotaryScaling::kLlama3, 32, 1, 4, 8192},
        1e-5,
        true,
        131072}},
      {"smollm2-1.7b",
       {49152, 2048, 8192, 24, 32, 32, 64, {130000}, 1e-5, true, 8192}},
      {"gemma-2b",
       {256000,
        2048,
        16384,
        18,
        8,
        1,
        256,
        {1e4},
        1e-6,
        true,
        8192,
        0.02,
        Architecture::kGemma,
        false,
        false,
        false,
        0,
        0,
        {},
        tensor_parallel::GluKind::kGeGlu,
        true}},
      {"llama-3b",
       {32000, 3200, 8640, 26, 32, 32, 100, {1e4}, 1e-6, false, 2048}},
      {"llama-7b",
       {32000, 4096, 11008, 32, 32, 32, 128, {1e4}, 1e-6, false, 2048}},
      {"mistral-7b",
       {32768,
        4096,
        14336,
        32,
        32,
        8,
        128,
        {1e6},
        1e-5,
        false,
        32768,
        0.02,
        Architecture::kMistral}},
      {"llama-8b",
       {128256, 4096, 14336, 32, 32, 8, 128, {5e5}, 1e-5, false, 8192}},
      {"llama-13b",
       {32000, 5120, 13824, 40, 40, 40, 128, {1e4}, 1e-6, false, 2048}},
      {"deepseek-v2-lite",
       {.vocabulary = 102400,
        .hidden = 2048,
        .intermediate = 10944,
        .layers = 27,
        .heads = 16,
        .kv_heads = 16,
        .head_size = 192,
        .rotary = YarnOfDeepSeek(),
        .max_positions = 163840,
        .architecture = Architecture::kDeepSeekV2,
        .mixture = {.experts = 64,
                    .per_token = 6,
                    .intermediate = 1408,
                    .shared_intermediate = 2816,
                    .dense_layers = 1,
                    .normalise = false},
        .latent = {.kv_rank = 512,
                   .nope = 128,
                   .rope = 64,
                   .value = 128,
                   .score_mscale = 0.707}}},
      {"gpt-oss-20b",
       {.vocabulary = 201088,
        .hidden = 2880,
        .intermediate = 2880,
        .layers = 24,
        .heads = 64,
        .kv_heads = 8,
        .head_size = 64,
        .rotary = {.base = 1.5e5,
                   .scaling = tensor_parallel::RotaryScaling::kYarn,
                   .factor = 32,
                   .low_turns = 1,
                   .high_turns = 32,
                   .original_positions = 4096,
                   .attention_factor = 0.1 * std::log(32.0) + 1,
                   .truncate = false},
        .norm_epsilon = 1e-5,
        .max_positions = 131072,
        .architecture = Architecture::kGptOss,
        .qkv_bias = true,
        .output_bias = true,
        .window = 128,
        .mixture = {.experts = 32,
                    .per_token = 4,
                    .intermediate = 2880,
                    .balance = 0.001,
                    .biases = true},
        .glu = tensor_parallel::GluKind::kClampedGlu,
        .full_layers = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23},
        .sinks = true}},
      {"qwen3-30b-a3b",
       {151936,
        2048,
        6144,
        48,
        32,
        4,
        128,
        {1e6},
        1e-6,
        false,
        40960,
        0.02,
        Architecture::kQwen3Moe,
        false,
        false,
        true,
        0,
        0,
        {128, 8, 768, 0, 0, false, true, 1, 0.001}}},
      {"mixtral-8x7b",
       {32000,
        4096,
        14336,
        32,
        32,
        8,
        128,
        {1e6},
        1e-5,
        false,
        32768,
        0.02,
        Architecture::kMixtral,
        false,
        false,
        false,
        0,
        0,
        {8, 2, 14336, 0, 0, false, true, 1, 0.02}}},
      {"llama-70b",
       {32000, 8192, 28672, 80, 64, 8, 128, {1e4}, 1e-5, false, 4096}},
      {"deepseek-v3",
       {.vocabulary = 129280,
        .hidden = 7168,
        .intermediate = 18432,
        .layers = 61,
        .heads = 128,
        .kv_heads = 128,
        .head_size = 192,
        .rotary = YarnOfDeepSeek(),
        .max_positions = 163840,
        .architecture = Architecture::kDeepSeekV3,
        .mixture = {.experts = 256,
                    .per_token = 8,
                    .intermediate = 2048,
                    .shared_intermediate = 2048,
                    .dense_layers = 3,
                    .sigmoid = true,
                    .scale = 2.5,
                    .groups = 8,
                    .groups_per_token = 4},
        .latent = {.query_rank = 1536,
                   .kv_rank = 512,
                   .nope = 128,
                   .rope = 64,
                   .value = 128,
                   .score_mscale = 1}}},
  };
  return *presets;
}

}  // namespace

absl::StatusOr<ModelConfig> PresetConfig(std::string_view name) {
  for (const Preset& preset : Presets()) {
    if (preset.name == name) return preset.config;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown model ", Quoted(name), "; there are ",
                   absl::StrJoin(PresetNames(), ", ")));
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Preset& preset : Presets()) names.push_back(preset.name);
  return names;
}

}  // namespace tessera::model_files
