// ModelConfig: the shape of a model of Llama's family (RMSNorm, rotary
// positions, grouped-query attention, SwiGLU).
//
//   TESSERA_ASSIGN_OR_RETURN(ModelConfig config, PresetConfig("llama-10m"));
//   config.vocabulary = tokenizer.vocabulary_size();
//   TESSERA_RETURN_IF_ERROR(config.Validate());
//   int64_t parameters = config.ParameterCount();
//
// Sources: Touvron et al., LLaMA, arXiv 2302.13971; Ainslie et al., GQA, arXiv
// 2305.13245; Grattafiori et al., Llama 3, arXiv 2407.21783; Jiang et al.,
// Mistral 7B, arXiv 2310.06825; Gemma Team, Gemma, arXiv 2403.08295; Yang et
// al., Qwen2, arXiv 2407.10671, and Qwen3, arXiv 2505.09388; of mixtures of
// experts Jiang et al., Mixtral of Experts, arXiv 2401.04088, and DeepSeek-V3,
// arXiv 2412.19437; names and defaults of transformers' LlamaConfig,
// MistralConfig, Qwen2Config, Qwen3Config, MixtralConfig, Qwen3MoeConfig,
// Dots1Config and GemmaConfig.
#ifndef TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_
#define TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/ops/glu.h"
#include "tensor_parallel/ops/rotary.h"
#include "tools/model_files/architectures.h"

namespace tessera::model_files {

// A mixture of experts in place of the MLP (tensor_parallel/blocks/moe_mlp.h).
struct MixtureConfig {
  int64_t experts = 0;    // num_local_experts and the like; 0: no mixture.
  int64_t per_token = 0;  // num_experts_per_tok
  // Hidden units of an expert (moe_intermediate_size), and of the one that
  // every token has; 0: there is none.
  int64_t intermediate = 0;
  int64_t shared_intermediate = 0;
  // The first layers that have an MLP instead (first_k_dense_replace).
  int64_t dense_layers = 0;
  // Scores are sigmoids, and a bias is added where experts are chosen, as in
  // DeepSeek-V3; else a softmax.
  bool sigmoid = false;
  bool normalise = true;  // norm_topk_prob: weights add up to `scale`.
  double scale = 1;       // routed_scaling_factor
  double balance = 0;     // router_aux_loss_coef

  friend bool operator==(const MixtureConfig&, const MixtureConfig&) = default;
};

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
  Architecture architecture = Architecture::kLlama;
  // Biases of the attention's projections: attention_bias of Llama's and
  // Qwen3's files stands for both, Qwen2 has that of queries, keys and values.
  bool qkv_bias = false;
  bool output_bias = false;
  // Norms of the heads of queries and keys, of Qwen3.
  bool qk_norm = false;
  // Sliding-window attention: in layers from window_begin on a query sees
  // `window` keys, itself included; 0: all earlier ones in every layer.
  // Mistral, where window_begin is 0, Qwen2 and Qwen3.
  int64_t window = 0;
  int64_t window_begin = 0;
  MixtureConfig mixture = {};
  // Of the MLP: hidden_act "gelu_pytorch_tanh" is kGeGlu, of Gemma.
  tensor_parallel::GluKind glu = tensor_parallel::GluKind::kSwiGlu;
  // The rows of the embedding are multiplied by the square root of their size,
  // in Gemma.
  bool scaled_embedding = false;

  // InvalidArgument, with the field, its value and the allowed range, for the
  // first number out of range: vocabulary and max_positions [1, 2^31-1], hidden
  // and heads * head_size [1, 2^20], intermediate [1, 2^22], layers [1, 4096];
  // kv_heads divides heads; head_size is even; window [0, 2^31-1] and
  // window_begin [0, layers), 0 without a window; biases, norms, windows,
  // mixtures, glu and scaled_embedding are those of the architecture. The
  // functions below are exact for valid configurations.
  absl::Status Validate() const;

  // Rows of the projections of queries, and of keys or values.
  int64_t QueryRows() const { return heads * head_size; }
  int64_t KvRows() const { return kv_heads * head_size; }
  // The window of a layer; 0: none.
  int64_t WindowOf(int64_t layer) const {
    return layer >= window_begin ? window : 0;
  }
  // Keys that a query sees, averaged over the layers and over the positions of
  // a sequence of that length.
  double KeysPerQuery(int64_t sequence) const;

  // The factor of the embedding's rows.
  double EmbeddingScale() const {
    return scaled_embedding ? std::sqrt(static_cast<double>(hidden)) : 1;
  }

  bool IsMixture(int64_t layer) const {
    return mixture.experts > 0 && layer >= mixture.dense_layers;
  }

  // Parameters of a layer with its norms and biases, and of the whole model;
  // tied embeddings count once. A token uses only the active ones: of a
  // mixture those of its experts.
  int64_t LayerParameterCount(int64_t layer) const;
  int64_t ParameterCount() const;
  int64_t ActiveParameterCount() const;
  int64_t ParameterBytes(DType dtype) const {
    return ParameterCount() * SizeInBytes(dtype);
  }

  // Floating-point operations per token, averaged over sequences of `sequence`
  // tokens; an addition or a multiplication is one. Counts the matrix products:
  // two operations for every active weight of the layers and the head, and
  // causal
  // attention, in which token i attends to i + 1 keys, or those of the window;
  // the backward pass takes
  // twice as many. Recomputation, norms, rotation, softmax and embedding
  // look-ups do not count.
  double ForwardFlopsPerToken(int64_t sequence) const;
  double TrainingFlopsPerToken(int64_t sequence) const {
    return 3 * ForwardFlopsPerToken(sequence);
  }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

 private:
  // Elements of the matrices of a layer, with as many experts.
  int64_t LayerMatrixSize(int64_t layer, int64_t experts) const;
  int64_t CountParameters(int64_t experts) const;
};

// A model by name, from a million parameters to published shapes. Those up to
// llama-50m are for byte tokens: 256 bytes, the end of text, and spare ones up
// to a multiple of 8. InvalidArgument, with the known names, for an unknown
// one.
absl::StatusOr<ModelConfig> PresetConfig(std::string_view name);

// From the smallest model to the largest.
std::vector<std::string_view> PresetNames();

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_
