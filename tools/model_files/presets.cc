#include "tools/model_files/presets.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/model_files/hugging_face_config.h"

namespace tessera::model_files {

namespace {

struct Preset {
  std::string_view name;
  std::string_view config;  // config.json, without the architecture's defaults.
};

constexpr Preset kPresets[] = {
    {"llama-1m",
     R"({"model_type": "llama", "vocab_size": 264, "hidden_size": 128,
       "intermediate_size": 512, "num_hidden_layers": 4,
       "num_attention_heads": 4, "num_key_value_heads": 2,
       "rms_norm_eps": 1e-5, "max_position_embeddings": 1024})"},
    // As many active parameters as llama-1m, apart from the routers.
    {"moe-3m",
     R"({"model_type": "mixtral", "vocab_size": 264, "hidden_size": 128,
       "intermediate_size": 256, "num_hidden_layers": 4,
       "num_attention_heads": 4, "num_key_value_heads": 2,
       "rope_theta": 10000, "max_position_embeddings": 1024})"},
    {"llama-10m",
     R"({"model_type": "llama", "vocab_size": 264, "hidden_size": 256,
       "intermediate_size": 832, "num_hidden_layers": 12,
       "num_attention_heads": 8, "num_key_value_heads": 4,
       "rms_norm_eps": 1e-5})"},
    {"llama-50m",
     R"({"model_type": "llama", "vocab_size": 264, "hidden_size": 512,
       "intermediate_size": 1536, "num_hidden_layers": 16,
       "num_attention_heads": 8, "num_key_value_heads": 4,
       "rms_norm_eps": 1e-5})"},
    {"llama-125m",
     R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 768,
       "intermediate_size": 2048, "num_hidden_layers": 12,
       "num_attention_heads": 12, "num_key_value_heads": 4,
       "rms_norm_eps": 1e-5})"},
    {"smollm2-135m",
     R"({"model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
       "intermediate_size": 1536, "num_hidden_layers": 30,
       "num_attention_heads": 9, "num_key_value_heads": 3,
       "rope_theta": 100000, "rms_norm_eps": 1e-5,
       "tie_word_embeddings": true, "max_position_embeddings": 8192,
       "initializer_range": 0.041666666666666664})"},
    {"smollm2-360m",
     R"({"model_type": "llama", "vocab_size": 49152, "hidden_size": 960,
       "intermediate_size": 2560, "num_hidden_layers": 32,
       "num_attention_heads": 15, "num_key_value_heads": 5,
       "rope_theta": 100000, "rms_norm_eps": 1e-5,
       "tie_word_embeddings": true, "max_position_embeddings": 8192})"},
    {"qwen2.5-0.5b",
     R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
       "intermediate_size": 4864, "num_hidden_layers": 24,
       "num_attention_heads": 14, "num_key_value_heads": 2,
       "rope_theta": 1000000, "tie_word_embeddings": true})"},
    {"qwen3-0.6b",
     R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
       "intermediate_size": 3072, "num_hidden_layers": 28,
       "num_attention_heads": 16, "num_key_value_heads": 8,
       "rope_theta": 1000000, "tie_word_embeddings": true,
       "max_position_embeddings": 40960})"},
    {"llama-1b",
     R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048,
       "intermediate_size": 5632, "num_hidden_layers": 22,
       "num_attention_heads": 32, "num_key_value_heads": 4,
       "rms_norm_eps": 1e-5})"},
    {"llama3.2-1b",
     R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
       "intermediate_size": 8192, "num_hidden_layers": 16,
       "num_attention_heads": 32, "num_key_value_heads": 8,
       "rope_theta": 500000,
       "rope_scaling": {"rope_type": "llama3", "factor": 32,
         "low_freq_factor": 1, "high_freq_factor": 4,
         "original_max_position_embeddings": 8192},
       "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
       "max_position_embeddings": 131072})"},
    {"smollm2-1.7b",
     R"({"model_type": "llama", "vocab_size": 49152, "hidden_size": 2048,
       "intermediate_size": 8192, "num_hidden_layers": 24,
       "num_attention_heads": 32, "rope_theta": 130000,
       "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
       "max_position_embeddings": 8192})"},
    {"gemma-2b",
     R"({"model_type": "gemma", "vocab_size": 256000, "hidden_size": 2048,
       "intermediate_size": 16384, "num_hidden_layers": 18,
       "num_attention_heads": 8, "num_key_value_heads": 1})"},
    {"llama-3b",
     R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 3200,
       "intermediate_size": 8640, "num_hidden_layers": 26,
       "num_attention_heads": 32})"},
    {"llama-7b",
     R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
       "intermediate_size": 11008, "num_hidden_layers": 32,
       "num_attention_heads": 32})"},
    {"mistral-7b",
     R"({"model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096,
       "intermediate_size": 14336, "num_hidden_layers": 32,
       "num_attention_heads": 32, "rope_theta": 1000000,
       "rms_norm_eps": 1e-5, "max_position_embeddings": 32768,
       "sliding_window": null})"},
    {"llama-8b",
     R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
       "intermediate_size": 14336, "num_hidden_layers": 32,
       "num_attention_heads": 32, "num_key_value_heads": 8,
       "rope_theta": 500000, "rms_norm_eps": 1e-5,
       "max_position_embeddings": 8192})"},
    {"llama-13b",
     R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 5120,
       "intermediate_size": 13824, "num_hidden_layers": 40,
       "num_attention_heads": 40})"},
    {"deepseek-v2-lite",
     R"({"model_type": "deepseek_v2", "vocab_size": 102400,
       "hidden_size": 2048, "intermediate_size": 10944,
       "num_hidden_layers": 27, "num_attention_heads": 16,
       "rope_scaling": {"rope_type": "yarn", "factor": 40, "beta_fast": 32,
         "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
         "original_max_position_embeddings": 4096},
       "max_position_embeddings": 163840, "q_lora_rank": null,
       "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
       "first_k_dense_replace": 1})"},
    {"gpt-oss-20b",
     R"({"model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
       "intermediate_size": 2880, "num_hidden_layers": 24,
       "num_attention_heads": 64, "num_local_experts": 32})"},
    {"qwen3-30b-a3b",
     R"({"model_type": "qwen3_moe", "vocab_size": 151936,
       "hidden_size": 2048, "intermediate_size": 6144,
       "num_hidden_layers": 48, "num_attention_heads": 32, "head_dim": 128,
       "rope_theta": 1000000, "max_position_embeddings": 40960,
       "norm_topk_prob": true})"},
    {"mixtral-8x7b",
     R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
       "intermediate_size": 14336, "num_hidden_layers": 32,
       "num_attention_heads": 32, "max_position_embeddings": 32768,
       "router_aux_loss_coef": 0.02})"},
    {"llama-70b",
     R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 8192,
       "intermediate_size": 28672, "num_hidden_layers": 80,
       "num_attention_heads": 64, "num_key_value_heads": 8,
       "rms_norm_eps": 1e-5, "max_position_embeddings": 4096})"},
    {"deepseek-v3",
     R"({"model_type": "deepseek_v3", "vocab_size": 129280,
       "hidden_size": 7168, "intermediate_size": 18432,
       "num_hidden_layers": 61, "num_attention_heads": 128,
       "rope_scaling": {"rope_type": "yarn", "factor": 40, "beta_fast": 32,
         "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1,
         "original_max_position_embeddings": 4096},
       "max_position_embeddings": 163840})"},
};

}  // namespace

absl::StatusOr<ModelConfig> PresetConfig(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    TESSERA_ASSIGN_OR_RETURN(HuggingFaceConfig config,
                             ParseHuggingFaceConfig(preset.config));
    return std::move(config.model);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown model ", Quoted(name), "; there are ",
                   absl::StrJoin(PresetNames(), ", ")));
}

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

}  // namespace tessera::model_files
