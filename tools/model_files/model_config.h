// ModelConfig: the shape of a Llama-architecture model (RMSNorm, rotary
// positions, grouped-query attention, SwiGLU; no biases).
//
//   TESSERA_ASSIGN_OR_RETURN(ModelConfig config, PresetConfig("llama-10m"));
//   config.vocabulary = tokenizer.vocabulary_size();
//   TESSERA_RETURN_IF_ERROR(config.Validate());
//   int64_t parameters = config.ParameterCount();
//
// Source: Touvron et al., LLaMA, arXiv 2302.13971; Ainslie et al., GQA, arXiv
// 2305.13245; names and defaults as transformers' LlamaConfig has them.
#ifndef TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_
#define TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"

namespace tessera::model_files {

struct ModelConfig {
  int64_t vocabulary = 0;    // vocab_size
  int64_t hidden = 0;        // hidden_size: of the residual stream
  int64_t intermediate = 0;  // intermediate_size: of gate and up
  int64_t layers = 0;        // num_hidden_layers
  int64_t heads = 0;         // num_attention_heads: of the queries
  int64_t kv_heads = 0;      // num_key_value_heads
  int64_t head_size = 0;     // head_dim; heads * head_size need not be hidden
  double rope_theta = 10000;
  double norm_epsilon = 1e-6;  // rms_norm_eps
  // The head has the weights of the embedding: tie_word_embeddings.
  bool tied_embeddings = false;
  int64_t max_positions = 2048;     // max_position_embeddings
  double initializer_range = 0.02;  // Standard deviation of the first weights.

  // InvalidArgument, which names the field, what it is and what is allowed, for
  // the first number that is out of its range: vocabulary and max_positions
  // [1, 2^31-1], hidden and heads * head_size [1, 2^20], intermediate [1,
  // 2^22], layers [1, 4096]; kv_heads divides heads; head_size is even. The
  // functions below are exact for what it allows.
  absl::Status Validate() const;

  // Rows of the query projection, and of those of keys and of values.
  int64_t QueryRows() const { return heads * head_size; }
  int64_t KvRows() const { return kv_heads * head_size; }

  // Of one layer with its norms; of the whole model, where tied embeddings
  // count once.
  int64_t LayerParameterCount() const;
  int64_t ParameterCount() const;
  int64_t ParameterBytes(DType dtype) const {
    return ParameterCount() * SizeInBytes(dtype);
  }

  // Floating-point operations that training needs for each token of sequences
  // of `sequence` tokens, averaged over these: an addition or multiplication is
  // one. Counted are the matrix products: two for every weight of the layers
  // and the head, and causal attention, in which token i meets i + 1 keys; the
  // backward takes twice as many. Nothing is counted for recomputation, norms,
  // rotation and softmax, nor for looking up embeddings.
  double ForwardFlopsPerToken(int64_t sequence) const;
  double TrainingFlopsPerToken(int64_t sequence) const {
    return 3 * ForwardFlopsPerToken(sequence);
  }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_MODEL_CONFIG_H_
