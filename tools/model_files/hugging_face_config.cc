#include "tools/model_files/hugging_face_config.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::model_files {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kArchitecture = "LlamaForCausalLM";

absl::Status WrongType(std::string_view key, std::string_view expected,
                       const Json& found) {
  return absl::InvalidArgumentError(absl::StrCat(
      "key \"", key, "\" must be ", expected, ", found ", DescribeJson(found)));
}

absl::Status NotSupported(std::string_view key, std::string_view supported,
                          const Json& found) {
  return absl::UnimplementedError(
      absl::StrCat("key \"", key, "\": ", DescribeJson(found),
                   " is not supported; supported is ", supported));
}

// Null if the key is missing or null.
const Json* Find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::Status ReadInteger(std::string_view key, const Json& value,
                         int64_t& target) {
  const std::optional<int64_t> number = JsonInteger(value);
  if (!number) return WrongType(key, "an integer below 2^63", value);
  target = *number;
  return absl::OkStatus();
}

// A missing key leaves the value unchanged.
absl::Status Read(const Json& object, const char* key, int64_t& target) {
  const Json* const value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  return ReadInteger(key, *value, target);
}

absl::Status Read(const Json& object, const char* key, double& target) {
  const Json* const value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_number()) return WrongType(key, "a number", *value);
  target = value->get<double>();
  return absl::OkStatus();
}

absl::Status Read(const Json& object, const char* key, bool& target) {
  const Json* const value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_boolean()) return WrongType(key, "true or false", *value);
  target = value->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadNeeded(const Json& object, const char* key, int64_t& target) {
  if (Find(object, key) != nullptr) return Read(object, key, target);
  return absl::InvalidArgumentError(
      absl::StrCat("key \"", key, "\" is missing"));
}

// Keys with one supported value, also their default.
absl::Status CheckFixedKeys(const Json& object) {
  static const auto* const fixed =
      new std::vector<std::pair<const char*, Json>>{
          {"model_type", "llama"},      {"hidden_act", "silu"},
          {"attention_bias", false},    {"mlp_bias", false},
          {"partial_rotary_factor", 1}, {"rope_interleaved", false},
          {"attention_dropout", 0}};
  for (const auto& [key, supported] : *fixed) {
    const Json* const value = Find(object, key);
    if (value != nullptr && *value != supported) {
      return NotSupported(key, supported.dump(), *value);
    }
  }
  for (const char* key : {"quantization_config", "sliding_window",
                          "layer_types", "query_pre_attn_scalar", "logit_scale",
                          "final_logit_softcapping", "num_local_experts"}) {
    const Json* const value = Find(object, key);
    if (value != nullptr) return NotSupported(key, "none", *value);
  }
  return absl::OkStatus();
}

absl::Status CheckArchitecture(const Json& object) {
  if (Find(object, "model_type") == nullptr) {
    return absl::InvalidArgumentError(
        "key \"model_type\" is missing; supported is \"llama\"");
  }
  const Json* const architectures = Find(object, "architectures");
  if (architectures == nullptr) return absl::OkStatus();
  if (!architectures->is_array()) {
    return WrongType("architectures", "an array of strings", *architectures);
  }
  for (const Json& name : *architectures) {
    if (name == kArchitecture) return absl::OkStatus();
  }
  if (architectures->empty()) return absl::OkStatus();
  return NotSupported("architectures", kArchitecture, architectures->front());
}

// Both forms of the parameters of rotary positions.
absl::Status ReadRope(const Json& object, ModelConfig& model) {
  TESSERA_RETURN_IF_ERROR(Read(object, "rope_theta", model.rope_theta));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* const rope = Find(object, key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) return WrongType(key, "an object", *rope);
    const char* const type_key =
        Find(*rope, "rope_type") != nullptr ? "rope_type" : "type";
    const Json* const type = Find(*rope, type_key);
    if (type != nullptr && *type != "default") {
      return Annotate(NotSupported(type_key, "\"default\"", *type),
                      absl::StrCat("key \"", key, "\""));
    }
    for (const auto& [name, value] : rope->items()) {
      if (name == "rope_type" || name == "type" || name == "rope_theta")
        continue;
      if (value.is_null()) continue;
      if (name == "partial_rotary_factor" && value == 1) continue;
      return Annotate(NotSupported(Quoted(name).substr(1, name.size()),
                                   "rope_type and rope_theta alone", value),
                      absl::StrCat("key \"", key, "\""));
    }
    TESSERA_RETURN_IF_ERROR(Read(*rope, "rope_theta", model.rope_theta));
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& object, ModelConfig& model) {
  TESSERA_RETURN_IF_ERROR(ReadNeeded(object, "vocab_size", model.vocabulary));
  TESSERA_RETURN_IF_ERROR(ReadNeeded(object, "hidden_size", model.hidden));
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, "intermediate_size", model.intermediate));
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, "num_hidden_layers", model.layers));
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, "num_attention_heads", model.heads));
  model.kv_heads = model.heads;
  TESSERA_RETURN_IF_ERROR(Read(object, "num_key_value_heads", model.kv_heads));
  model.head_size = model.heads > 0 ? model.hidden / model.heads : 0;
  TESSERA_RETURN_IF_ERROR(Read(object, "head_dim", model.head_size));
  if (Find(object, "head_dim") == nullptr && model.heads > 0 &&
      model.hidden % model.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key \"head_dim\" is missing, and num_attention_heads ", model.heads,
        " does not divide hidden_size ", model.hidden));
  }
  TESSERA_RETURN_IF_ERROR(Read(object, "rms_norm_eps", model.norm_epsilon));
  TESSERA_RETURN_IF_ERROR(
      Read(object, "tie_word_embeddings", model.tied_embeddings));
  TESSERA_RETURN_IF_ERROR(
      Read(object, "max_position_embeddings", model.max_positions));
  TESSERA_RETURN_IF_ERROR(
      Read(object, "initializer_range", model.initializer_range));
  TESSERA_RETURN_IF_ERROR(ReadRope(object, model));
  return model.Validate();
}

absl::Status ReadDType(const Json& object, std::optional<DType>& dtype) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    const Json* const value = Find(object, key);
    if (value == nullptr) continue;
    if (!value->is_string()) return WrongType(key, "a string", *value);
    std::string_view name = value->get_ref<const std::string&>();
    if (name.substr(0, 6) == "torch.") name.remove_prefix(6);
    TESSERA_ASSIGN_OR_RETURN(dtype, ParseDType(name),
                             Annotate(_, absl::StrCat("key \"", key, "\"")));
  }
  return absl::OkStatus();
}

absl::Status ReadTokens(const Json& object, HuggingFaceConfig& config) {
  if (const Json* const bos = Find(object, "bos_token_id"); bos != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        ReadInteger("bos_token_id", *bos, config.bos_token_id.emplace()));
  }
  const Json* const eos = Find(object, "eos_token_id");
  if (eos == nullptr) return absl::OkStatus();
  if (!eos->is_array()) {
    return ReadInteger("eos_token_id", *eos,
                       config.eos_token_ids.emplace_back());
  }
  for (const Json& id : *eos) {
    TESSERA_RETURN_IF_ERROR(
        ReadInteger("eos_token_id", id, config.eos_token_ids.emplace_back()));
  }
  return absl::OkStatus();
}

// torch's names.
std::string TorchName(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "float64";
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    default:
      return std::string(DTypeName(dtype));
  }
}

}  // namespace

absl::StatusOr<HuggingFaceConfig> ParseHuggingFaceConfig(
    std::string_view json) {
  TESSERA_ASSIGN_OR_RETURN(
      const Json object,
      ParseJson(json, {.max_bytes = kMaxModelConfigBytes, .max_depth = 16}));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected an object such as {\"model_type\": \"llama\", "
                     "...}, found ",
                     DescribeJson(object)));
  }
  TESSERA_RETURN_IF_ERROR(CheckArchitecture(object));
  TESSERA_RETURN_IF_ERROR(CheckFixedKeys(object));
  HuggingFaceConfig config;
  TESSERA_RETURN_IF_ERROR(ReadModel(object, config.model));
  TESSERA_RETURN_IF_ERROR(ReadDType(object, config.dtype));
  TESSERA_RETURN_IF_ERROR(ReadTokens(object, config));
  return config;
}

absl::StatusOr<std::string> FormatHuggingFaceConfig(
    const HuggingFaceConfig& config) {
  const ModelConfig& model = config.model;
  TESSERA_RETURN_IF_ERROR(model.Validate());
  nlohmann::ordered_json object = {
      {"architectures", {kArchitecture}},
      {"model_type", "llama"},
      {"vocab_size", model.vocabulary},
      {"hidden_size", model.hidden},
      {"intermediate_size", model.intermediate},
      {"num_hidden_layers", model.layers},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", model.head_size},
      {"hidden_act", "silu"},
      {"rope_theta", model.rope_theta},
      {"rope_scaling", nullptr},
      {"rms_norm_eps", model.norm_epsilon},
      {"tie_word_embeddings", model.tied_embeddings},
      {"max_position_embeddings", model.max_positions},
      {"initializer_range", model.initializer_range},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
  };
  if (config.dtype.has_value()) {
    object["torch_dtype"] = TorchName(*config.dtype);
  }
  if (config.bos_token_id.has_value()) {
    object["bos_token_id"] = *config.bos_token_id;
  }
  if (config.eos_token_ids.size() == 1) {
    object["eos_token_id"] = config.eos_token_ids[0];
  } else if (!config.eos_token_ids.empty()) {
    object["eos_token_id"] = config.eos_token_ids;
  }
  return object.dump(2) + "\n";
}

absl::StatusOr<HuggingFaceConfig> LoadHuggingFaceConfig(
    const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ReadFile(path, kMaxModelConfigBytes));
  TESSERA_ASSIGN_OR_RETURN(HuggingFaceConfig config,
                           ParseHuggingFaceConfig(json),
                           Annotate(_, QuotedPath(path)));
  return config;
}

absl::Status SaveHuggingFaceConfig(const HuggingFaceConfig& config,
                                   const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           FormatHuggingFaceConfig(config),
                           Annotate(_, QuotedPath(path)));
  return WriteFile(path, json);
}

}  // namespace tessera::model_files
