#include "tools/model_files/architectures.h"

#include <cstddef>

namespace tessera::model_files {
namespace {

constexpr WindowTraits kWindowsOfQwen = {.allowed = true,
                                         .needs_use = true,
                                         .usual = 4096,
                                         .by_layer = true,
                                         .begin = 28};

constexpr ArchitectureTraits kArchitectures[] = {
    {.architecture = Architecture::kLlama,
     .title = "Llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .max_positions = 2048,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .biases = AttentionBiases::kChosen,
     .windows = {.needs_use = true, .by_layer = true}},
    {.architecture = Architecture::kMistral,
     .title = "Mistral",
     .model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .max_positions = 131072,
     .kv_heads = 8,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .windows = {.allowed = true, .usual = 4096}},
    {.architecture = Architecture::kQwen2,
     .title = "Qwen2",
     .model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .max_positions = 32768,
     .kv_heads = 32,
     .biases = AttentionBiases::kQkv,
     .windows = kWindowsOfQwen},
    {.architecture = Architecture::kQwen3,
     .title = "Qwen3",
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .max_positions = 32768,
     .kv_heads = 32,
     .head_size = 128,
     .biases = AttentionBiases::kChosen,
     .qk_norm = true,
     .windows = kWindowsOfQwen},
    {.architecture = Architecture::kMixtral,
     .title = "Mixtral",
     .model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .max_positions = 131072,
     .kv_heads = 8,
     .rope_theta = 1e6,
     .norm_epsilon = 1e-5,
     .bos_token_id = 1,
     .eos_token_id = 2,
     .windows = {.allowed = true},
     .mixture = {.experts = "num_local_experts",
                 .experts_alias = "num_experts",
                 .usual_experts = 8,
                 .usual_per_token = 2,
                 .intermediate = "intermediate_size",
                 .balance = "router_aux_loss_coef",
                 .module = "block_sparse_moe",
                 .gate = "w1",
                 .up = "w3",
                 .down = "w2"}},
    {.architecture = Architecture::kQwen3Moe,
     .title = "Qwen3 MoE",
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .max_positions = 32768,
     .kv_heads = 4,
     .biases = AttentionBiases::kChosen,
     .qk_norm = true,
     .windows =
         {.allowed = true, .needs_use = true, .usual = 4096, .by_layer = true},
     .mixture = {.experts = "num_experts",
                 .experts_alias = "num_local_experts",
                 .usual_experts = 128,
                 .usual_per_token = 8,
                 .usual_intermediate = 768,
                 .intermediate = "moe_intermediate_size",
                 .normalise = "norm_topk_prob",
                 .balance = "router_aux_loss_coef"}},
    {.architecture = Architecture::kDots1,
     .title = "dots.llm1",
     .model_type = "dots1",
     .class_name = "Dots1ForCausalLM",
     .max_positions = 2048,
     .kv_heads = 32,
     .biases = AttentionBiases::kChosen,
     .qk_norm = true,
     .windows = {.allowed = true, .usual = 4096, .by_layer = true, .begin = 62},
     .mixture = {.experts = "n_routed_experts",
                 .experts_alias = "num_local_experts",
                 .usual_intermediate = 1408,
                 .intermediate = "moe_intermediate_size",
                 .normalise = "norm_topk_prob",
                 .like_deepseek = true}},
    {.architecture = Architecture::kGemma,
     .title = "Gemma",
     .model_type = "gemma",
     .class_name = "GemmaForCausalLM",
     .max_positions = 8192,
     .kv_heads = 16,
     .head_size = 256,
     .bos_token_id = 2,
     .eos_token_id = 1,
     .biases = AttentionBiases::kChosen,
     .glu = tensor_parallel::GluKind::kGeGlu,
     .scaled_embedding = true,
     .tied_embeddings = true,
     .norm_offset = 1,
     .windows = {.needs_use = true, .by_layer = true}}};

constexpr bool AreInOrder() {
  size_t index = 0;
  for (const ArchitectureTraits& traits : kArchitectures) {
    if (static_cast<size_t>(traits.architecture) != index++) return false;
  }
  return true;
}
static_assert(AreInOrder());

}  // namespace

std::span<const ArchitectureTraits> AllArchitectures() {
  return kArchitectures;
}

const ArchitectureTraits& TraitsOf(Architecture architecture) {
  return kArchitectures[static_cast<size_t>(architecture)];
}

}  // namespace tessera::model_files
