// The architectures that can be trained, a row for each: what their files call
// things, which options they have, and transformers' defaults where config.json
// has no number. A new one is a value of Architecture and a row of
// architectures.cc; reading and writing of config.json, names of weights and
// checks of a ModelConfig follow from it. A layer that no row has yet is a new
// field here and in ModelConfig, and a part of tensor_parallel/blocks.
#ifndef TESSERA_TOOLS_MODEL_FILES_ARCHITECTURES_H_
#define TESSERA_TOOLS_MODEL_FILES_ARCHITECTURES_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "tensor_parallel/ops/glu.h"

namespace tessera::model_files {

// Whose files describe the model (hugging_face_config.h). What is computed
// follows from the other fields of ModelConfig alone.
// dots.llm1 has the experts of DeepSeek-V3 and the attention of Qwen 3.
enum class Architecture {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kMixtral,
  kQwen3Moe,
  kDots1,
  kGemma,
};

// Biases of the attention's projections.
enum class AttentionBiases {
  kNone,
  kQkv,     // Of queries, keys and values.
  kChosen,  // attention_bias: of these and of the output, or none.
};

// Sliding windows of the attention.
struct WindowTraits {
  bool allowed = false;
  // Only if "use_sliding_window" is true.
  bool needs_use = false;
  // Keys, without "sliding_window"; 0: all.
  int64_t usual = 0;
  // Some layers may have none: "layer_types" is read.
  bool by_layer = false;
  // The first layer with one, without "max_window_layers"; 0: all layers have
  // one, whatever that key is.
  int64_t begin = 0;
};

// Keys are null where files have none.
struct MixtureTraits {
  const char* experts = nullptr;  // The key of their number; null: no mixture.
  const char* intermediate = nullptr;
  const char* normalise = nullptr;  // Null: weights are normalised.
  const char* balance = nullptr;
  // Those of DeepSeek-V3: scores are sigmoids, and there may be shared experts,
  // dense layers before the mixtures, and a factor.
  bool like_deepseek = false;
  // Names of weights: "mlp.gate", "mlp.experts.0.gate_proj" and so on.
  std::string_view module = "mlp";
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
};

struct ArchitectureTraits {
  Architecture architecture;
  std::string_view title;
  std::string_view model_type;  // Of config.json.
  std::string_view class_name;  // Of transformers.
  int64_t max_positions = 0;
  int64_t head_size = 0;       // 0: hidden_size / num_attention_heads.
  bool needs_kv_heads = true;  // Else as many as queries have.
  AttentionBiases biases = AttentionBiases::kNone;
  bool qk_norm = false;
  tensor_parallel::GluKind glu = tensor_parallel::GluKind::kSwiGlu;
  // The rows of the embedding are multiplied by the square root of their size.
  bool scaled_embedding = false;
  bool tied_embeddings = false;  // Without "tie_word_embeddings".
  // Files have the weights of norms less this.
  double norm_offset = 0;
  WindowTraits windows = {};
  MixtureTraits mixture = {};
};

// In the order of Architecture.
std::span<const ArchitectureTraits> AllArchitectures();

const ArchitectureTraits& TraitsOf(Architecture architecture);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_ARCHITECTURES_H_
