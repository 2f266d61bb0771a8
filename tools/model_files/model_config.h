// The shape of a Llama-like model (RMSNorm, rotary positions, grouped-query
// attention, SwiGLU), its size and operations, and named presets.
#ifndef TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_
#define TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/ops/rotary.h"
#include "tools/model_files/architectures.h"

namespace tessera::model_files {

// A mixture of experts in place of the MLP (tensor_parallel/blocks/moe_mlp.h).
struct MixtureConfig {
  int64_t experts = 0;    // num_local_experts or similar; 0: no mixture.
  int64_t per_token = 0;  // num_experts_per_tok
  // Hidden units of an expert (moe_intermediate_size), and of the shared
  // expert, which all tokens use; 0: no shared expert.
  int64_t intermediate = 0;
  int64_t shared_intermediate = 0;
  // The number of first layers with an MLP instead (first_k_dense_replace).
  int64_t dense_layers = 0;
  bool normalise = true;  // norm_topk_prob: weights add up to `scale`.
  double scale = 1;       // routed_scaling_factor
  double balance = 0;     // router_aux_loss_coef
  // Groups of experts, of which a token chooses some (n_group, topk_group).
  int64_t groups = 1;
  int64_t groups_per_token = 1;

  friend bool operator==(const MixtureConfig&, const MixtureConfig&) = default;
};

// Multi-head latent attention (tensor_parallel/blocks/latent_projection.h).
struct LatentConfig {
  int64_t query_rank = 0;   // q_lora_rank; 0: queries are projected directly.
  int64_t kv_rank = 0;      // kv_lora_rank; 0: no latent attention.
  int64_t nope = 0;         // qk_nope_head_dim
  int64_t rope = 0;         // qk_rope_head_dim
  int64_t value = 0;        // v_head_dim
  bool interleaved = true;  // rope_interleave
  // mscale_all_dim of yarn, which also scales the scores; 0: none.
  double score_mscale = 0;

  friend bool operator==(const LatentConfig&, const LatentConfig&) = default;
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(ModelConfig config, PresetConfig("llama-10m"));
//   config.vocabulary = tokenizer.vocabulary_size();
//   TESSERA_RETURN_IF_ERROR(config.Validate());
//   int64_t parameters = config.ParameterCount();
//
// Sources: Touvron et al., LLaMA, arXiv 2302.13971; Ainslie et al., GQA, arXiv
// 2305.13245; Grattafiori et al., Llama 3, arXiv 2407.21783; Jiang et al.,
// Mistral 7B, arXiv 2310.06825; Gemma Team, Gemma, arXiv 2403.08295, Gemma 2,
// 2408.00118, and Gemma 3, 2503.19786; Yang et al., Qwen2, arXiv 2407.10671,
// and Qwen3, arXiv 2505.09388; Abdin et al., Phi-3, arXiv 2404.14219; OLMo
// Team, OLMo 2, arXiv 2501.00656; OpenAI, gpt-oss, 2508.10925; for mixtures of
// experts Jiang et al., Mixtral of Experts, arXiv 2401.04088, DeepSeek-V2,
// arXiv 2405.04434, and DeepSeek-V3, arXiv 2412.19437; for names and defaults
// transformers' LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config,
// MixtralConfig, Qwen3MoeConfig, Dots1Config and GemmaConfig.
struct ModelConfig {
  int64_t vocabulary = 0;    // vocab_size
  int64_t hidden = 0;        // hidden_size, of the residual stream
  int64_t intermediate = 0;  // intermediate_size, of gate and up
  int64_t layers = 0;        // num_hidden_layers
  int64_t heads = 0;         // num_attention_heads, of the queries
  int64_t kv_heads = 0;      // num_key_value_heads
  int64_t head_size = 0;     // head_dim; heads * head_size need not be hidden
  tensor_parallel::RotaryFrequencies rotary =
      {};                      // rope_theta and rope_scaling
  double norm_epsilon = 1e-6;  // rms_norm_eps
  // tie_word_embeddings: the head shares the weights of the embedding.
  bool tied_embeddings = false;
  int64_t max_positions = 2048;  // max_position_embeddings
  double initializer_range =
      0.02;  // Standard deviation of the initial weights.
  // The layers and the files are those of this architecture.
  Architecture architecture = Architecture::kLlama;
  // Biases of the attention's projections. In Llama's and Qwen3's files
  // attention_bias sets both; Qwen2 always has qkv_bias.
  bool qkv_bias = false;
  bool output_bias = false;
  // Sliding-window attention: in the layers from window_begin on, a query
  // attends to `window` keys, including its own; 0: to all previous keys in
  // every layer. Used by Mistral (with window_begin 0), Qwen2 and Qwen3, and
  // except in full_layers by Gemma 2 and 3.
  int64_t window = 0;
  int64_t window_begin = 0;
  MixtureConfig mixture = {};
  // Layers after window_begin without a window, ascending.
  std::vector<int64_t> full_layers = {};
  // Layers without rotary positions, ascending: SmolLM3.
  std::vector<int64_t> no_rope_layers = {};
  // In layers with a window, in place of `rotary`: Gemma 3.
  std::optional<tensor_parallel::RotaryFrequencies> local_rotary = {};
  // query_pre_attn_scalar: scores are divided by its square root; 0: by that of
  // head_size.
  double score_scalar = 0;
  // attn_logit_softcapping and final_logit_softcapping; 0: no caps.
  double attention_cap = 0;
  double final_cap = 0;
  // With latent attention, head_size is that of queries and keys, nope + rope,
  // and kv_heads is `heads`: DeepSeek V2 and V3.
  LatentConfig latent = {};

  // InvalidArgument, with the field, its value and the allowed range, for the
  // first number out of range: vocabulary and max_positions [1, 2^31-1], hidden
  // and heads * head_size [1, 2^20], intermediate [1, 2^22], layers [1, 4096];
  // kv_heads divides heads; head_size is even; window [0, 2^31-1] and
  // window_begin [0, layers), 0 without a window; biases, windows, mixtures and
  // other fields are supported by the architecture. The functions below are
  // exact for valid configurations.
  absl::Status Validate() const;

  // The part of Validate() that allows loops over the layers.
  absl::Status ValidateLayerCount() const;

  const ArchitectureTraits& traits() const { return TraitsOf(architecture); }

  // Rows of the query projection, and of each of the key and value projections.
  int64_t QueryRows() const { return heads * head_size; }
  int64_t KvRows() const { return kv_heads * head_size; }
  bool IsLatent() const { return latent.kv_rank > 0; }
  // Rows of the first projection of latent attention.
  int64_t LatentRows() const {
    return latent.query_rank + latent.kv_rank + latent.rope;
  }
  // The inputs of the queries' projection, and of the attention's output.
  int64_t QueryInputs() const {
    return latent.query_rank > 0 ? latent.query_rank : hidden;
  }
  int64_t OutputColumns() const {
    return IsLatent() ? heads * latent.value : QueryRows();
  }
  // The part of a head that rotary positions may turn.
  int64_t RotarySize() const { return IsLatent() ? latent.rope : head_size; }
  // The window of a layer; 0: none.
  int64_t WindowOf(int64_t layer) const {
    const bool is_full =
        std::binary_search(full_layers.begin(), full_layers.end(), layer);
    return layer >= window_begin && !is_full ? window : 0;
  }
  // The rotary positions of a layer; null if it has none.
  const tensor_parallel::RotaryFrequencies* RotaryOf(int64_t layer) const {
    if (std::binary_search(no_rope_layers.begin(), no_rope_layers.end(),
                           layer)) {
      return nullptr;
    }
    const bool is_local = local_rotary.has_value() && WindowOf(layer) > 0;
    return is_local ? &*local_rotary : &rotary;
  }
  // The factor of the products of queries and keys.
  double ScoreScale() const;
  // The number of keys that a query attends to, averaged over the layers and
  // over the positions of a sequence of that length.
  double KeysPerQuery(int64_t sequence) const;

  // The factor by which the embedding's rows are multiplied, rounded to the
  // type of the weights as in transformers.
  double EmbeddingScale(DType dtype) const;

  bool IsMixture(int64_t layer) const {
    return mixture.experts > 0 && layer >= mixture.dense_layers;
  }

  // The parameters of a layer, including norms and biases, and of the whole
  // model, with tied embeddings counted once.
  int64_t LayerParameterCount(int64_t layer) const;
  int64_t ParameterCount() const;
  int64_t ParameterBytes(DType dtype) const {
    return ParameterCount() * SizeInBytes(dtype);
  }

  // Floating-point operations per token, averaged over sequences of `sequence`
  // tokens; an addition or a multiplication counts as one. Counts matrix
  // products, that is, two operations for each active weight of the layers and
  // the head, and causal attention, in which token i attends to i + 1 keys or
  // to the keys in the window. The backward pass takes twice as many. Excludes
  // recomputation, norms, rotation, softmax and embedding look-ups.
  double ForwardFlopsPerToken(int64_t sequence) const;
  double TrainingFlopsPerToken(int64_t sequence) const {
    return 3 * ForwardFlopsPerToken(sequence);
  }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

 private:
  // Elements of the matrices of an attention.
  int64_t AttentionMatrixSize() const;
  // Elements of the matrices of a layer that has `experts` experts.
  int64_t LayerMatrixSize(int64_t layer, int64_t experts) const;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_
