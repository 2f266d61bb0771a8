// Reads and writes the config.json of a Hugging Face model.
//
//   TESSERA_ASSIGN_OR_RETURN(HuggingFaceConfig config,
//                            LoadHuggingFaceConfig("smollm/config.json"));
//   config.model.layers;
//
// Reads the keys that change the computation, in the formats of transformers 4
// (rope_theta, torch_dtype) and 5 (rope_parameters, dtype). Values that
// Tessera's model does not support are errors:
//
//   model_type                       llama (Llama 2, 3, 3.1 and 3.2 of text),
//                                    mistral, qwen2 (also 2.5), qwen3, gemma,
//                                    gemma2, gemma3_text, phi3, smollm3,
//                                    olmo2, and mixtures of architectures.h,
//                                    among them gpt_oss
//                                    deepseek_v2, deepseek_v3
//   architectures                    contains the type's class, if present
//   hidden_act, hidden_activation    silu; gemma: gelu_pytorch_tanh, or gelu,
//                                    its name in early files
//   attention_bias                   mistral, mixtral, phi3: false; qwen2:
//                                    true; others: any
//   mlp_bias                         false
//   sliding_window                   llama, gemma, olmo2: none; mistral, phi3:
//                                    any; others: any, for the layers of
//                                    layer_types or their defaults, if there
//                                    is a use_sliding_window, it must be true
//   layer_types                      full_attention, sliding_attention
//   no_rope_layers                   smollm3: any
//   rope_scaling, rope_parameters    none, or of type default, linear, dynamic,
//                                    yarn, longrope, llama3; phi3: default,
//                                    longrope; gemma3_text: by type of layers,
//                                    default in those with windows
//   partial_rotary_factor            phi3: any; others: 1
//   rope_interleaved                 false
//   rope_interleave                  deepseek_v3: any
//   topk_method                      deepseek_v2: greedy, group_limited_greedy
//   n_group, topk_group              deepseek_v2, deepseek_v3: any; others: 1
//   num_nextn_predict_layers         deepseek_v3: any; these layers are not
//                                    read, and written as 0
//   attention_dropout, resid_pdrop, embd_pdrop   0
//   query_pre_attn_scalar, final_logit_softcapping   gemma2, gemma3_text: any
//   attn_logit_softcapping           gemma2: any; gemma3_text: none, because
//                                    transformers ignores it
//   swiglu_limit, swiglu_alpha       7 and 1.702
//   quantization_config              gpt_oss: quant_method "mxfp4"; others: fp8
//                                    with blocks of 128 x 128; they are read
//                                    but not written
//   logit_scale, and the number of experts outside of mixtures: none
//
// A missing key has the default of its architecture in transformers
// (architectures.h); only the sizes of the model are required. A rope_scaling
// that is not empty replaces rope_parameters, dtype replaces torch_dtype, and
// the number of experts may have its name of either version. Other keys are
// ignored here and kept by FormatHuggingFaceConfig.
#ifndef TESSERA_TOOLS_MODEL_FILES_HUGGING_FACE_CONFIG_H_
#define TESSERA_TOOLS_MODEL_FILES_HUGGING_FACE_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tools/model_files/model_config.h"

namespace tessera::model_files {

struct HuggingFaceConfig {
  ModelConfig model = {};
  std::optional<DType> dtype = {};           // Of the stored weights.
  std::optional<int64_t> bos_token_id = {};  // Begins a text.
  std::vector<int64_t> eos_token_ids = {};   // End a text; may be empty.

  friend bool operator==(const HuggingFaceConfig&,
                         const HuggingFaceConfig&) = default;
};

inline constexpr int64_t kMaxModelConfigBytes = 1 << 20;

// Rows and columns of a block of a quantized weight that share a scale.
inline constexpr int64_t kScaleBlock = 128;

// InvalidArgument if `json` is not an object, a required key is missing, a
// value has a wrong type, or ModelConfig::Validate fails; Unimplemented for an
// unsupported model. The message names the key, its value and the supported
// values.
absl::StatusOr<HuggingFaceConfig> ParseHuggingFaceConfig(std::string_view json);

// Writes every key above, so that the result does not depend on transformers'
// defaults, in a format that versions 4 and 5 both read. The inverse of
// ParseHuggingFaceConfig. `source` is the config.json that the model comes
// from, if there is one: its other keys, such as pad_token_id, and its tokens
// that begin and end a text are written as they are there. InvalidArgument if
// the model is invalid, or for errors of `source`.
absl::StatusOr<std::string> FormatHuggingFaceConfig(
    const HuggingFaceConfig& config, std::string_view source = "");

// The same for a file, which is replaced atomically. Errors name the file.
absl::StatusOr<HuggingFaceConfig> LoadHuggingFaceConfig(
    const std::string& path);
absl::Status SaveHuggingFaceConfig(const HuggingFaceConfig& config,
                                   const std::string& path,
                                   std::string_view source = "");

// The files that describe a model besides its shape. Training does not change
// them, so checkpoints contain them and exports write them again.
struct ModelSource {
  std::string config = "";             // config.json; "" if there is none.
  std::string generation_config = "";  // generation_config.json, or "".

  friend bool operator==(const ModelSource&, const ModelSource&) = default;
};

// Reads the files of a directory; missing files are empty. InvalidArgument,
// with the file, if one is not a JSON object.
absl::StatusOr<ModelSource> LoadModelSource(const std::string& directory);

// The tokens that end a text: "eos_token_id" of both files, a number or an
// array. If neither has one, the default of the architecture; none if the
// source is empty. Ascending, each token once.
absl::StatusOr<std::vector<int64_t>> EndsOfText(const ModelSource& source);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_HUGGING_FACE_CONFIG_H_
