// A table of the architectures that can be trained. A row contains the names in
// an architecture's files, its options, and transformers' defaults for numbers
// that config.json omits, which differ between architectures
// (testdata/transformers_defaults.json). To add an architecture, add a value of
// Architecture and a row in architectures.cc; the reader and writer of
// config.json, the names of weights and the checks of ModelConfig use that row.
// A new kind of layer also needs a field here and in ModelConfig, and an
// implementation in tensor_parallel/blocks.
#ifndef TESSERA_TOOLS_MODEL_FILES_ARCHITECTURES_H_
#define TESSERA_TOOLS_MODEL_FILES_ARCHITECTURES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensor_parallel/ops/glu.h"

namespace tessera::model_files {

// The architecture whose file format describes a model (hugging_face_config.h).
// The computation depends only on the other fields of ModelConfig. dots.llm1
// has the experts of DeepSeek-V3 and the attention of Qwen 3.
enum class Architecture {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kMixtral,
  kQwen3Moe,
  kDots1,
  kGemma,
  kPhi3,
  kSmolLm3,
  kOlmo2,
  kGemma2,
  kGemma3,
  kGptOss,
  kDeepSeekV2,
  kDeepSeekV3,
};

// Which projections of the attention have biases.
enum class AttentionBiases {
  kNone,
  kQkv,     // Queries, keys and values.
  kChosen,  // "attention_bias": these and the output, or none.
};

// Sliding windows of the attention.
struct WindowTraits {
  bool allowed = false;
  // Windows apply only if "use_sliding_window" is true.
  bool needs_use = false;
  // The number of keys if "sliding_window" is missing; 0 for all.
  int64_t usual = 0;
  // "layer_types" selects the layers with windows.
  bool by_layer = false;
  // The first layer with a window if "max_window_layers" is missing. 0: all
  // layers have windows, and that key is ignored.
  int64_t begin = 0;
  // Without "layer_types" each layer with this number, counted from 1, has no
  // window ("sliding_window_pattern" of Gemma 3). 0: the other rules apply.
  int64_t period = 0;
  // Without "layer_types" the layers without rotary positions have windows.
  bool without_rope = false;
};

// Rotary positions.
struct RopeTraits {
  // "partial_rotary_factor" may be below 1.
  bool partial = false;
  // Phi 3: the only scaling is longrope, also called su and yarn, and
  // "original_max_position_embeddings" is outside of it, with this default.
  int64_t original_positions = 0;
  // Layers with windows have this frequency if "rope_local_base_freq" is
  // missing; 0: that of the others.
  double local_theta = 0;
  // Each layer with this number, counted from 1, has no rotary positions, if
  // "no_rope_layers" and "no_rope_layer_interval" are missing; 0: all have.
  int64_t no_rope_interval = 0;
  // Without scaling in config.json, positions are scaled by yarn with the
  // factor 32 from 4096 positions, not truncated: GPT-OSS.
  bool usual_yarn = false;
};

// Gemma 2 and 3.
struct ScoreTraits {
  // "query_pre_attn_scalar" replaces the size of a head in the factor of
  // scores; 0: it does not.
  double scalar = 0;
  // The keys for caps exist; their defaults, 0 for none.
  bool has_attention_cap = false;
  bool has_final_cap = false;
  double attention_cap = 0;
  double final_cap = 0;
};

// Mixtures of experts. A key is null if the files do not have it. A number is
// the default of its key; 0 if transformers has none, so that files need it.
struct MixtureTraits {
  const char* experts = nullptr;  // Number of experts; null: no mixture.
  // The other name of `experts`, which wins if a file has both.
  const char* experts_alias = nullptr;
  int64_t usual_experts = 0;
  int64_t usual_per_token = 0;     // num_experts_per_tok
  int64_t usual_intermediate = 0;  // Of `intermediate`.
  const char* intermediate = nullptr;
  const char* normalise = nullptr;  // Null: always normalised.
  const char* balance = nullptr;
  // As in DeepSeek: there may be shared experts, dense layers before the
  // mixtures, and a scaling factor, with these defaults.
  bool like_deepseek = false;
  // As in GPT-OSS: the router and the experts have biases, and a file has one
  // tensor for all experts of a layer (stacked_experts.h).
  bool like_gpt_oss = false;
  int64_t usual_shared = 0;
  int64_t usual_dense_layers = 0;
  double usual_scale = 1;
  bool sigmoid = false;          // Scores are sigmoids, as in DeepSeek-V3.
  bool usual_normalise = false;  // Of `normalise`.
  bool never_normalised = false;
  // Groups of experts: RouterOptions::group_terms, or 0 without groups, and
  // the defaults of "n_group" and "topk_group", 0 if files need them.
  // "topk_method" says whether groups are used (DeepSeek-V2).
  int64_t group_terms = 0;
  int64_t usual_groups = 0;
  int64_t usual_groups_per_token = 0;
  bool has_group_method = false;
  // Names of weights: "mlp.gate", "mlp.experts.0.gate_proj" and so on.
  std::string_view module = "mlp";
  std::string_view router = "gate";
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
};

// Multi-head latent attention; defaults of its keys, and 0 without it.
struct LatentTraits {
  int64_t query_rank = 0;  // q_lora_rank, which may be null: none.
  int64_t kv_rank = 0;     // kv_lora_rank
  int64_t nope = 0;        // qk_nope_head_dim
  int64_t rope = 0;        // qk_rope_head_dim
  int64_t value = 0;       // v_head_dim
  // "rope_interleave" may be false.
  bool has_interleave = false;
};

struct ArchitectureTraits {
  Architecture architecture;
  std::string_view title;
  std::string_view model_type;  // In config.json.
  std::string_view class_name;  // In transformers.
  // Defaults of the keys of config.json.
  int64_t max_positions = 0;
  int64_t kv_heads = 0;   // 0: num_attention_heads.
  int64_t head_size = 0;  // 0: hidden_size / num_attention_heads.
  double rope_theta = 1e4;
  double norm_epsilon = 1e-6;
  std::optional<int64_t> bos_token_id = {};
  std::optional<int64_t> eos_token_id = {};
  AttentionBiases biases = AttentionBiases::kNone;
  bool usual_biases = false;  // Default of "attention_bias".
  bool sinks = false;         // The attention has them.
  bool qk_norm = false;
  bool shared_qk_norm = false;  // Over all heads together.
  // Norms before attention and MLP, and of their outputs.
  bool input_norms = true;
  bool output_norms = false;
  // Files have one tensor for queries, keys and values, and one for gate and
  // up.
  bool fused_projections = false;
  tensor_parallel::GluKind glu = tensor_parallel::GluKind::kSwiGlu;
  // Rows of the embedding are multiplied by the square root of their size.
  bool scaled_embedding = false;
  bool tied_embeddings = false;  // Default of "tie_word_embeddings".
  // Files store the weights of norms minus this offset.
  double norm_offset = 0;
  RopeTraits rope = {};
  ScoreTraits scores = {};
  LatentTraits latent = {};
  WindowTraits windows = {};
  MixtureTraits mixture = {};
};

// In the order of Architecture.
std::span<const ArchitectureTraits> AllArchitectures();

const ArchitectureTraits& TraitsOf(Architecture architecture);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_ARCHITECTURES_H_
