#include "tools/model_files/hugging_face_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/model_files/architectures.h"

namespace tessera::model_files {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostHeadSize = int64_t{1} << 20;
// Values of "topk_method".
constexpr std::string_view kGreedy = "greedy";
constexpr std::string_view kGroupLimited = "group_limited_greedy";

constexpr std::string_view kSilu = "silu";
constexpr std::string_view kGelu = "gelu_pytorch_tanh";

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

// `usual` is the default; 0 if there is none.
absl::Status ReadNeeded(const Json& object, const char* key, int64_t& target,
                        int64_t usual = 0) {
  if (usual > 0) target = usual;
  if (usual > 0 || Find(object, key) != nullptr) {
    return Read(object, key, target);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("key \"", key, "\" is missing"));
}

absl::Status CheckPositive(std::string_view key, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("key \"", key, "\" is ", value, "; it must be 1 or more"));
}

// Weights in fp8 with a scale for each block of 128 x 128 are read
// (HuggingFaceWeights).
absl::Status CheckQuantization(const Json& object,
                               const ArchitectureTraits& traits) {
  constexpr const char* kKey = "quantization_config";
  const Json* const given = Find(object, kKey);
  if (given == nullptr) return absl::OkStatus();
  if (traits.mixture.like_gpt_oss) {
    if (!given->is_object()) return WrongType(kKey, "an object", *given);
    const Json method = given->value("quant_method", Json());
    return method == "mxfp4"
               ? absl::OkStatus()
               : NotSupported("quant_method", "\"mxfp4\"", method);
  }
  const Json blocks = {kScaleBlock, kScaleBlock};
  const bool is_known = given->is_object() &&
                        given->value("quant_method", Json()) == "fp8" &&
                        given->value("weight_block_size", Json()) == blocks;
  if (is_known) return absl::OkStatus();
  return NotSupported(
      kKey,
      absl::StrCat("quant_method \"fp8\" with weight_block_size ",
                   DumpJson(blocks),
                   "; otherwise save the model without quantization, as "
                   "transformers' dequantize() does"),
      *given);
}

// Checks keys of which only the default is supported.
absl::Status CheckFixedKeys(const Json& object,
                            const ArchitectureTraits& traits) {
  static const auto* const fixed =
      new std::vector<std::pair<const char*, Json>>{
          {"mlp_bias", false},
          {"use_bidirectional_attention", false},
          {"resid_pdrop", 0},
          {"embd_pdrop", 0},
          {"rope_interleaved", false},
          {"router_jitter_noise", 0},
          {"decoder_sparse_step", 1},
          {"mlp_only_layers", Json::array()},
          {"moe_layer_freq", 1},
          {"swiglu_limit", tensor_parallel::clamped_glu::kLimit},
          {"swiglu_alpha", tensor_parallel::clamped_glu::kGain},
          {"attention_dropout", 0}};
  for (const auto& [key, supported] : *fixed) {
    const Json* const value = Find(object, key);
    if (value != nullptr && *value != supported) {
      return NotSupported(key, DumpJson(supported), *value);
    }
  }
  const Json* const scale = Find(object, "logit_scale");
  if (scale != nullptr) return NotSupported("logit_scale", "none", *scale);
  return CheckQuantization(object, traits);
}

// Checks the activation of the MLP. Gemma's first files say "gelu", for which
// transformers 4 uses the tanh approximation.
absl::Status CheckActivation(const Json& object,
                             tensor_parallel::GluKind kind) {
  const bool is_gelu = kind == tensor_parallel::GluKind::kGeGlu;
  const std::string_view needed = is_gelu ? kGelu : kSilu;
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const Json* const value = Find(object, key);
    if (value == nullptr || *value == needed) continue;
    if (is_gelu && *value == "gelu") continue;
    return NotSupported(key, absl::StrCat("\"", needed, "\""), *value);
  }
  return absl::OkStatus();
}

// Sets the layers without a window: `is_full` by layer.
void SetFullLayers(const std::vector<bool>& is_full, ModelConfig& model) {
  const auto first = std::find(is_full.begin(), is_full.end(), false);
  if (first == is_full.end()) {
    model.window = 0;
    return;
  }
  model.window_begin = first - is_full.begin();
  for (int64_t layer = model.window_begin; layer < model.layers; ++layer) {
    if (is_full[static_cast<size_t>(layer)]) model.full_layers.push_back(layer);
  }
}

// InvalidArgument if an array does not have an element for each layer.
absl::Status CheckByLayer(const char* key, const Json& array,
                          const ModelConfig& model, bool allows_more = false) {
  if (!array.is_array()) return WrongType(key, "an array", array);
  const auto size = static_cast<int64_t>(array.size());
  if (size == model.layers || (allows_more && size > model.layers)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "key \"", key, "\" has ", size,
      " elements; it must have one for each of the ", model.layers, " layers"));
}

// Reads "layer_types", which overrides the layers with windows.
absl::Status ReadLayerTypes(const Json& types, ModelConfig& model) {
  TESSERA_RETURN_IF_ERROR(CheckByLayer("layer_types", types, model));
  std::vector<bool> is_full;
  for (const Json& type : types) {
    is_full.push_back(type == "full_attention");
    if (is_full.back() || (model.window > 0 && type == "sliding_attention")) {
      continue;
    }
    return NotSupported("layer_types",
                        model.window > 0
                            ? "\"full_attention\" and \"sliding_attention\""
                            : "\"full_attention\"",
                        type);
  }
  SetFullLayers(is_full, model);
  return absl::OkStatus();
}

// The layers with windows without "layer_types".
absl::Status SetUsualWindows(const Json& object, const WindowTraits& traits,
                             ModelConfig& model) {
  std::vector<bool> is_full;
  int64_t period = traits.period, begin = traits.begin;
  if (traits.period > 0 && model.architecture == Architecture::kGemma3) {
    TESSERA_RETURN_IF_ERROR(Read(object, "sliding_window_pattern", period));
  }
  if (traits.begin > 0) {
    TESSERA_RETURN_IF_ERROR(Read(object, "max_window_layers", begin));
  }
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const bool turns = !absl::c_binary_search(model.no_rope_layers, layer);
    is_full.push_back(layer < begin || (traits.without_rope && turns) ||
                      (period > 0 && (layer + 1) % period == 0));
  }
  SetFullLayers(is_full, model);
  return absl::OkStatus();
}

absl::Status ReadWindows(const Json& object, const WindowTraits& traits,
                         ModelConfig& model) {
  bool used = !traits.needs_use;
  if (!used) {
    TESSERA_RETURN_IF_ERROR(Read(object, "use_sliding_window", used));
  }
  const auto window = object.find("sliding_window");
  if (!traits.allowed) {
    if (used) {
      return NotSupported("use_sliding_window", "false", Json(used));
    }
    if (window != object.end() && !window->is_null()) {
      return NotSupported("sliding_window", "none", *window);
    }
  } else if (used && window == object.end()) {
    model.window = traits.usual;
  } else if (used && !window->is_null()) {
    TESSERA_RETURN_IF_ERROR(
        ReadInteger("sliding_window", *window, model.window));
    if (model.window < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("key \"sliding_window\" is ", model.window,
                       "; it must be 1 or more, or null"));
    }
  }
  if (!traits.by_layer) return absl::OkStatus();
  const Json* const types = Find(object, "layer_types");
  if (types != nullptr) return ReadLayerTypes(*types, model);
  return model.window == 0 ? absl::OkStatus()
                           : SetUsualWindows(object, traits, model);
}

// Reads the layers without rotary positions, before ReadWindows.
absl::Status ReadNoRopeLayers(const Json& object, const RopeTraits& traits,
                              ModelConfig& model) {
  int64_t interval = traits.no_rope_interval;
  if (interval == 0) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Read(object, "no_rope_layer_interval", interval));
  if (interval < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("key \"no_rope_layer_interval\" is ", interval,
                     "; it must be 1 or more"));
  }
  const Json* const turns = Find(object, "no_rope_layers");
  if (turns != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        CheckByLayer("no_rope_layers", *turns, model, /*allows_more=*/true));
  }
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    int64_t turned = (layer + 1) % interval == 0 ? 0 : 1;
    if (turns != nullptr) {
      TESSERA_RETURN_IF_ERROR(ReadInteger(
          "no_rope_layers", (*turns)[static_cast<size_t>(layer)], turned));
    }
    if (turned == 0) model.no_rope_layers.push_back(layer);
  }
  return absl::OkStatus();
}

absl::StatusOr<Architecture> ReadArchitecture(const Json& object) {
  const std::span<const ArchitectureTraits> all = AllArchitectures();
  const auto quoted = [](std::string* out, const ArchitectureTraits& traits) {
    absl::StrAppend(out, "\"", traits.model_type, "\"");
  };
  const std::string supported = absl::StrJoin(all, ", ", quoted);
  const Json* const type = Find(object, "model_type");
  if (type == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key \"model_type\" is missing; supported are ", supported));
  }
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const ArchitectureTraits& traits) {
                                    return *type == traits.model_type;
                                  });
  if (found == all.end()) {
    return NotSupported("model_type", supported, *type);
  }
  const Json* const architectures = Find(object, "architectures");
  if (architectures == nullptr) return found->architecture;
  if (!architectures->is_array()) {
    return WrongType("architectures", "an array of strings", *architectures);
  }
  for (const Json& name : *architectures) {
    if (name == found->class_name) return found->architecture;
  }
  if (architectures->empty()) return found->architecture;
  return NotSupported("architectures", found->class_name,
                      architectures->front());
}

absl::Status ReadBiases(const Json& object, const ArchitectureTraits& traits,
                        ModelConfig& model) {
  const AttentionBiases allowed = traits.biases;
  const bool fixed = allowed == AttentionBiases::kQkv;
  bool biases = fixed || traits.usual_biases;
  TESSERA_RETURN_IF_ERROR(Read(object, "attention_bias", biases));
  model.qkv_bias = biases;
  model.output_bias = biases && !fixed;
  if (allowed == AttentionBiases::kChosen || biases == fixed) {
    return absl::OkStatus();
  }
  return NotSupported("attention_bias", fixed ? "true" : "false", Json(biases));
}

// A type of rope_scaling, and its keys.
struct RopeType {
  std::string_view name;
  tensor_parallel::RotaryScaling scaling;
  std::vector<std::string_view> needed, optional;
};

constexpr const char* kOriginalPositions = "original_max_position_embeddings";
constexpr const char* kPartial = "partial_rotary_factor";
constexpr const char* kMscaleAllDim = "mscale_all_dim";

const std::vector<RopeType>& RopeTypes() {
  using tensor_parallel::RotaryScaling;
  static const auto* const types = new std::vector<RopeType>{
      {"default", RotaryScaling::kNone, {}, {}},
      {"linear", RotaryScaling::kLinear, {"factor"}, {}},
      {"dynamic", RotaryScaling::kDynamic, {"factor"}, {}},
      {"yarn",
       RotaryScaling::kYarn,
       {"factor"},
       {kOriginalPositions, "attention_factor", "beta_fast", "beta_slow",
        "mscale", kMscaleAllDim, "truncate"}},
      {"longrope",
       RotaryScaling::kLongRope,
       {"short_factor", "long_factor"},
       {kOriginalPositions, "attention_factor", "factor"}},
      {"llama3",
       RotaryScaling::kLlama3,
       {"factor", "low_freq_factor", "high_freq_factor"},
       {kOriginalPositions}}};
  return *types;
}

const RopeType& RopeTypeOf(tensor_parallel::RotaryScaling scaling) {
  return *absl::c_find_if(RopeTypes(), [&](const RopeType& type) {
    return type.scaling == scaling;
  });
}

absl::StatusOr<const RopeType*> ReadRopeType(const Json& rope,
                                             const RopeTraits& traits) {
  const char* const key =
      Find(rope, "rope_type") != nullptr ? "rope_type" : "type";
  const Json* const name = Find(rope, key);
  const std::vector<RopeType>& types = RopeTypes();
  if (name == nullptr) return &types.front();
  if (traits.original_positions > 0 && (*name == "su" || *name == "yarn")) {
    return &RopeTypeOf(tensor_parallel::RotaryScaling::kLongRope);
  }
  for (const RopeType& type : types) {
    if (*name == type.name) return &type;
  }
  const auto quoted = [](std::string* out, const RopeType& type) {
    absl::StrAppend(out, "\"", type.name, "\"");
  };
  return NotSupported(key, absl::StrJoin(types, ", ", quoted), *name);
}

absl::Status CheckRopeKeys(const Json& rope, const RopeType& type) {
  std::vector<std::string_view> keys = type.needed;
  keys.insert(keys.end(), type.optional.begin(), type.optional.end());
  for (const auto& [name, value] : rope.items()) {
    const bool known = name == "rope_type" || name == "type" ||
                       name == "rope_theta" || name == kPartial ||
                       absl::c_linear_search(keys, name);
    if (known || value.is_null()) continue;
    return NotSupported(
        Quoted(name).substr(1, name.size()),
        absl::StrCat("rope_type and rope_theta", keys.empty() ? " alone" : ", ",
                     absl::StrJoin(keys, ", ")),
        value);
  }
  for (const std::string_view key : type.needed) {
    if (rope.contains(key) && !rope.at(key).is_null()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("key \"", key, "\" is missing"));
  }
  return absl::OkStatus();
}

absl::Status ReadNumbers(const Json& object, const char* key,
                         std::vector<double>& numbers) {
  const Json& array = object.at(key);
  if (!array.is_array()) return WrongType(key, "an array of numbers", array);
  for (const Json& number : array) {
    if (!number.is_number())
      return WrongType(key, "an array of numbers", array);
    numbers.push_back(number.get<double>());
  }
  return absl::OkStatus();
}

double LongRopeFactor(double factor, double original_positions) {
  if (factor <= 1) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(original_positions));
}

// Reads the factor of yarn and longrope, or computes it as transformers does.
absl::Status ReadAttentionFactor(const Json& rope, const ModelConfig& model,
                                 tensor_parallel::RotaryFrequencies& rotary) {
  const auto original = static_cast<double>(rotary.original_positions);
  if (rotary.scaling == tensor_parallel::RotaryScaling::kLongRope) {
    double factor = static_cast<double>(model.max_positions) / original;
    TESSERA_RETURN_IF_ERROR(Read(rope, "factor", factor));
    rotary.attention_factor = LongRopeFactor(factor, original);
    return Read(rope, "attention_factor", rotary.attention_factor);
  }
  const auto scale = [&](double share) {
    return rotary.factor <= 1 ? 1 : 0.1 * share * std::log(rotary.factor) + 1;
  };
  double share = 0, all = 0;
  TESSERA_RETURN_IF_ERROR(Read(rope, "mscale", share));
  TESSERA_RETURN_IF_ERROR(Read(rope, kMscaleAllDim, all));
  rotary.attention_factor =
      share != 0 && all != 0 ? scale(share) / scale(all) : scale(1);
  return Read(rope, "attention_factor", rotary.attention_factor);
}

absl::Status ReadRopeObject(const Json& rope, const ModelConfig& model,
                            tensor_parallel::RotaryFrequencies& rotary) {
  using tensor_parallel::RotaryScaling;
  const RopeTraits& traits = model.traits().rope;
  TESSERA_ASSIGN_OR_RETURN(const RopeType* const type,
                           ReadRopeType(rope, traits));
  TESSERA_RETURN_IF_ERROR(CheckRopeKeys(rope, *type));
  rotary.scaling = type->scaling;
  TESSERA_RETURN_IF_ERROR(Read(rope, "rope_theta", rotary.base));
  TESSERA_RETURN_IF_ERROR(Read(rope, kPartial, rotary.partial));
  if (type->scaling == RotaryScaling::kNone) return absl::OkStatus();
  if (type->scaling != RotaryScaling::kLongRope) {
    TESSERA_RETURN_IF_ERROR(Read(rope, "factor", rotary.factor));
  }
  if (type->scaling == RotaryScaling::kLinear) return absl::OkStatus();
  if (type->scaling == RotaryScaling::kDynamic) {
    rotary.original_positions = model.max_positions;
    return absl::OkStatus();
  }
  if (traits.original_positions == 0) {
    rotary.original_positions = model.max_positions;
    TESSERA_RETURN_IF_ERROR(
        Read(rope, kOriginalPositions, rotary.original_positions));
  }
  if (type->scaling == RotaryScaling::kLlama3) {
    TESSERA_RETURN_IF_ERROR(Read(rope, "low_freq_factor", rotary.low_turns));
    return Read(rope, "high_freq_factor", rotary.high_turns);
  }
  if (type->scaling == RotaryScaling::kLongRope) {
    TESSERA_RETURN_IF_ERROR(
        ReadNumbers(rope, "short_factor", rotary.short_factors));
    TESSERA_RETURN_IF_ERROR(
        ReadNumbers(rope, "long_factor", rotary.long_factors));
    return ReadAttentionFactor(rope, model, rotary);
  }
  rotary.high_turns = 32;
  TESSERA_RETURN_IF_ERROR(Read(rope, "beta_slow", rotary.low_turns));
  TESSERA_RETURN_IF_ERROR(Read(rope, "beta_fast", rotary.high_turns));
  TESSERA_RETURN_IF_ERROR(Read(rope, "truncate", rotary.truncate));
  return ReadAttentionFactor(rope, model, rotary);
}

// Reads the object under `key` if it is there.
absl::Status ReadRopeKey(const Json& object, const char* key,
                         const ModelConfig& model,
                         tensor_parallel::RotaryFrequencies& rotary) {
  const Json* const rope = Find(object, key);
  if (rope == nullptr) return absl::OkStatus();
  if (!rope->is_object()) return WrongType(key, "an object", *rope);
  if (rope->empty()) return absl::OkStatus();
  return Annotate(ReadRopeObject(*rope, model, rotary),
                  absl::StrCat("key \"", key, "\""));
}

// Gemma 3: "rope_parameters" has an object for each type of layers, and a
// rope_scaling is that of the layers without a window.
absl::Status ReadRopeByLayerType(const Json& object, ModelConfig& model) {
  tensor_parallel::RotaryFrequencies local = {
      .base = model.traits().rope.local_theta};
  TESSERA_RETURN_IF_ERROR(Read(object, "rope_local_base_freq", local.base));
  const Json* const both = Find(object, "rope_parameters");
  Json full = Json::object();
  if (both != nullptr) {
    if (!both->is_object()) {
      return WrongType("rope_parameters", "an object", *both);
    }
    for (const auto& [name, value] : both->items()) {
      if (name == "full_attention" || name == "sliding_attention") continue;
      return NotSupported("rope_parameters",
                          "\"full_attention\", \"sliding_attention\"", *both);
    }
    TESSERA_RETURN_IF_ERROR(
        ReadRopeKey(*both, "sliding_attention", model, local));
    if (const Json* const given = Find(*both, "full_attention")) full = *given;
  }
  if (const Json* const scaling = Find(object, "rope_scaling")) {
    if (!full.is_object() || !scaling->is_object()) {
      return WrongType("rope_scaling", "an object", *scaling);
    }
    full.update(*scaling);
  }
  if (local.scaling != tensor_parallel::RotaryScaling::kNone) {
    return NotSupported("sliding_attention", "a rope_type of \"default\"",
                        *both);
  }
  model.local_rotary = local;
  return ReadRopeKey({{"full_attention", full}}, "full_attention", model,
                     model.rotary);
}

// Reads the parameters of rotary positions in both formats. As in transformers
// 5, a rope_scaling that is not empty replaces rope_parameters.
absl::Status ReadRope(const Json& object, ModelConfig& model) {
  const RopeTraits& traits = model.traits().rope;
  TESSERA_RETURN_IF_ERROR(Read(object, "rope_theta", model.rotary.base));
  TESSERA_RETURN_IF_ERROR(Read(object, kPartial, model.rotary.partial));
  if (traits.original_positions > 0) {
    model.rotary.original_positions = traits.original_positions;
    TESSERA_RETURN_IF_ERROR(
        Read(object, kOriginalPositions, model.rotary.original_positions));
  }
  if (traits.local_theta > 0) return ReadRopeByLayerType(object, model);
  const Json* const scaling = Find(object, "rope_scaling");
  const bool wins = scaling != nullptr && !scaling->empty();
  const char* const key = wins ? "rope_scaling" : "rope_parameters";
  if (traits.usual_yarn && Find(object, key) == nullptr) {
    const Json usual = {{"rope_type", "yarn"},
                        {"factor", 32.0},
                        {"truncate", false},
                        {kOriginalPositions, 4096}};
    return ReadRopeObject(usual, model, model.rotary);
  }
  TESSERA_RETURN_IF_ERROR(ReadRopeKey(object, key, model, model.rotary));
  const Json* const rope = Find(object, key);
  if (!model.IsLatent() || rope == nullptr) return absl::OkStatus();
  return Read(*rope, kMscaleAllDim, model.latent.score_mscale);
}

// Null without scaling, unless that stands for yarn.
nlohmann::ordered_json RopeScalingOf(const ModelConfig& model) {
  using tensor_parallel::RotaryScaling;
  const tensor_parallel::RotaryFrequencies& rotary = model.rotary;
  if (rotary.scaling == RotaryScaling::kNone) {
    if (!model.traits().rope.usual_yarn) return nullptr;
    return {{"rope_type", RopeTypeOf(rotary.scaling).name}};
  }
  const auto original = static_cast<double>(rotary.original_positions);
  if (model.traits().rope.original_positions > 0 &&
      rotary.attention_factor ==
          LongRopeFactor(static_cast<double>(model.max_positions) / original,
                         original)) {
    // transformers 4 allows Phi 3 only these keys.
    return {{"type", "longrope"},
            {"short_factor", rotary.short_factors},
            {"long_factor", rotary.long_factors}};
  }
  nlohmann::ordered_json rope = {
      {"rope_type", RopeTypeOf(rotary.scaling).name}};
  if (rotary.scaling == RotaryScaling::kLongRope) {
    rope["short_factor"] = rotary.short_factors;
    rope["long_factor"] = rotary.long_factors;
  } else {
    rope["factor"] = rotary.factor;
  }
  if (rotary.scaling == RotaryScaling::kLinear ||
      rotary.scaling == RotaryScaling::kDynamic) {
    return rope;
  }
  rope[kOriginalPositions] = rotary.original_positions;
  if (rotary.scaling == RotaryScaling::kLlama3) {
    rope["low_freq_factor"] = rotary.low_turns;
    rope["high_freq_factor"] = rotary.high_turns;
    return rope;
  }
  rope["attention_factor"] = rotary.attention_factor;
  if (rotary.scaling == RotaryScaling::kLongRope) return rope;
  rope["beta_slow"] = rotary.low_turns;
  rope["beta_fast"] = rotary.high_turns;
  rope["truncate"] = rotary.truncate;
  const double all = model.latent.score_mscale;
  if (all == 0) return rope;
  rope[kMscaleAllDim] = all;
  if (rotary.factor <= 1) return rope;
  // Programs that ignore attention_factor need mscale.
  const double log = 0.1 * std::log(rotary.factor);
  const double whole = rotary.attention_factor * (log * all + 1);
  rope["mscale"] = rotary.attention_factor == 1 ? all : (whole - 1) / log;
  return rope;
}

void AddRope(const ModelConfig& model, nlohmann::ordered_json& object) {
  const RopeTraits& traits = model.traits().rope;
  object["rope_theta"] = model.rotary.base;
  object["rope_scaling"] = RopeScalingOf(model);
  if (traits.partial) object[kPartial] = model.rotary.partial;
  if (traits.original_positions > 0 &&
      model.rotary.scaling != tensor_parallel::RotaryScaling::kNone) {
    object[kOriginalPositions] = model.rotary.original_positions;
  }
  if (model.local_rotary.has_value()) {
    object["rope_local_base_freq"] = model.local_rotary->base;
  }
  if (traits.no_rope_interval == 0) return;
  std::vector<int> turns(static_cast<size_t>(model.layers), 1);
  for (const int64_t layer : model.no_rope_layers) turns[layer] = 0;
  object["no_rope_layers"] = turns;
}

void AddWindows(const ModelConfig& model, nlohmann::ordered_json& object) {
  const WindowTraits& traits = model.traits().windows;
  object["use_sliding_window"] = model.window > 0;
  object["sliding_window"] = nullptr;
  object["max_window_layers"] =
      model.window > 0 ? model.window_begin : model.layers;
  // transformers needs a number for architectures with a period.
  if (traits.period > 0) object["sliding_window"] = traits.usual;
  if (model.window > 0) object["sliding_window"] = model.window;
  const bool is_begin = traits.period == 0 && !traits.without_rope;
  if (is_begin && model.full_layers.empty()) return;
  nlohmann::ordered_json& types = object["layer_types"];
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    types.push_back(model.WindowOf(layer) > 0 ? "sliding_attention"
                                              : "full_attention");
  }
}

// Reads the caps and the scalar of scores.
absl::Status ReadScores(const Json& object, const ScoreTraits& traits,
                        ModelConfig& model) {
  const auto read = [&](const char* key, bool has, double usual,
                        double& target) {
    const auto found = object.find(key);
    if (found == object.end()) {
      target = usual;
      return absl::OkStatus();
    }
    if (found->is_null()) return absl::OkStatus();
    if (!has) return NotSupported(key, "none", *found);
    return Read(object, key, target);
  };
  TESSERA_RETURN_IF_ERROR(read("query_pre_attn_scalar", traits.scalar > 0,
                               traits.scalar, model.score_scalar));
  TESSERA_RETURN_IF_ERROR(read("attn_logit_softcapping",
                               traits.has_attention_cap, traits.attention_cap,
                               model.attention_cap));
  return read("final_logit_softcapping", traits.has_final_cap, traits.final_cap,
              model.final_cap);
}

void AddScores(const ModelConfig& model, nlohmann::ordered_json& object) {
  const ScoreTraits& traits = model.traits().scores;
  const auto or_null = [](double cap) {
    return cap > 0 ? nlohmann::ordered_json(cap) : nlohmann::ordered_json();
  };
  if (traits.scalar == 0) return;
  // transformers needs an integer.
  const auto whole = static_cast<int64_t>(model.score_scalar);
  object["query_pre_attn_scalar"] = whole;
  if (static_cast<double>(whole) != model.score_scalar) {
    object["query_pre_attn_scalar"] = model.score_scalar;
  }
  if (traits.has_attention_cap) {
    object["attn_logit_softcapping"] = or_null(model.attention_cap);
  }
  object["final_logit_softcapping"] = or_null(model.final_cap);
}

// Reads the groups of experts.
absl::Status ReadGroups(const Json& object, const MixtureTraits& keys,
                        MixtureConfig& mixture) {
  if (keys.group_terms == 0) {
    for (const char* key : {"n_group", "topk_group"}) {
      const Json* const value = Find(object, key);
      if (value != nullptr && *value != 1)
        return NotSupported(key, "1", *value);
    }
    return absl::OkStatus();
  }
  const Json* const method = Find(object, "topk_method");
  if (keys.has_group_method) {
    if (method == nullptr || *method == kGreedy) return absl::OkStatus();
    if (*method != kGroupLimited) {
      return NotSupported(
          "topk_method",
          absl::StrCat("\"", kGreedy, "\" and \"", kGroupLimited, "\""),
          *method);
    }
  }
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, "n_group", mixture.groups, keys.usual_groups));
  return ReadNeeded(object, "topk_group", mixture.groups_per_token,
                    keys.usual_groups_per_token);
}

// Reads the sizes of latent attention, whose "head_dim" is ignored.
absl::Status ReadLatent(const Json& object, const LatentTraits& usual,
                        ModelConfig& model) {
  if (usual.kv_rank == 0) return absl::OkStatus();
  LatentConfig& latent = model.latent;
  latent = {.query_rank = usual.query_rank,
            .kv_rank = usual.kv_rank,
            .nope = usual.nope,
            .rope = usual.rope,
            .value = usual.value};
  const auto query_rank = object.find("q_lora_rank");
  if (query_rank != object.end() && query_rank->is_null()) {
    latent.query_rank = 0;
  } else {
    TESSERA_RETURN_IF_ERROR(Read(object, "q_lora_rank", latent.query_rank));
    TESSERA_RETURN_IF_ERROR(CheckPositive("q_lora_rank", latent.query_rank));
  }
  TESSERA_RETURN_IF_ERROR(Read(object, "kv_lora_rank", latent.kv_rank));
  TESSERA_RETURN_IF_ERROR(CheckPositive("kv_lora_rank", latent.kv_rank));
  TESSERA_RETURN_IF_ERROR(Read(object, "qk_nope_head_dim", latent.nope));
  TESSERA_RETURN_IF_ERROR(Read(object, "qk_rope_head_dim", latent.rope));
  TESSERA_RETURN_IF_ERROR(Read(object, "v_head_dim", latent.value));
  if (usual.has_interleave) {
    TESSERA_RETURN_IF_ERROR(
        Read(object, "rope_interleave", latent.interleaved));
  }
  for (const int64_t part : {latent.nope, latent.rope}) {
    if (part >= 0 && part <= kMostHeadSize) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "keys \"qk_nope_head_dim\" and \"qk_rope_head_dim\" are ", latent.nope,
        " and ", latent.rope, "; they must be from 0 to ", kMostHeadSize));
  }
  model.head_size = latent.nope + latent.rope;
  return absl::OkStatus();
}

void AddLatent(const ModelConfig& model, nlohmann::ordered_json& object) {
  if (!model.IsLatent()) return;
  const LatentConfig& latent = model.latent;
  object["head_dim"] = latent.rope;  // As in transformers.
  object["q_lora_rank"] = nullptr;
  if (latent.query_rank > 0) object["q_lora_rank"] = latent.query_rank;
  object["kv_lora_rank"] = latent.kv_rank;
  object["qk_nope_head_dim"] = latent.nope;
  object["qk_rope_head_dim"] = latent.rope;
  object["v_head_dim"] = latent.value;
  if (model.traits().latent.has_interleave) {
    object["rope_interleave"] = latent.interleaved;
    object["num_nextn_predict_layers"] = 0;  // They are not read.
  }
}

absl::Status ReadMixture(const Json& object, const MixtureTraits& keys,
                         ModelConfig& model) {
  for (const char* key :
       {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const Json* const value = Find(object, key);
    const bool known = keys.experts != nullptr &&
                       (key == std::string_view(keys.experts) ||
                        key == std::string_view(keys.experts_alias));
    if (value != nullptr && !known) return NotSupported(key, "none", *value);
  }
  if (keys.experts == nullptr) return absl::OkStatus();
  MixtureConfig& mixture = model.mixture;
  const bool has_alias = Find(object, keys.experts_alias) != nullptr;
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, has_alias ? keys.experts_alias : keys.experts,
                 mixture.experts, keys.usual_experts));
  TESSERA_RETURN_IF_ERROR(ReadNeeded(object, "num_experts_per_tok",
                                     mixture.per_token, keys.usual_per_token));
  TESSERA_RETURN_IF_ERROR(ReadNeeded(object, keys.intermediate,
                                     mixture.intermediate,
                                     keys.usual_intermediate));
  if (keys.normalise != nullptr) {
    mixture.normalise = keys.usual_normalise;
    TESSERA_RETURN_IF_ERROR(Read(object, keys.normalise, mixture.normalise));
    if (keys.never_normalised && mixture.normalise) {
      return NotSupported(keys.normalise, "false", Json(true));
    }
  }
  if (keys.balance != nullptr) {
    mixture.balance = 0.001;
    TESSERA_RETURN_IF_ERROR(Read(object, keys.balance, mixture.balance));
  }
  TESSERA_RETURN_IF_ERROR(ReadGroups(object, keys, mixture));
  if (!keys.like_deepseek) return absl::OkStatus();
  mixture.dense_layers = keys.usual_dense_layers;
  mixture.scale = keys.usual_scale;
  int64_t shared = keys.usual_shared;
  TESSERA_RETURN_IF_ERROR(Read(object, "n_shared_experts", shared));
  if (shared < 0 ||
      (shared > 0 && mixture.intermediate > (int64_t{1} << 31) / shared)) {
    return absl::InvalidArgumentError(
        absl::StrCat("key \"n_shared_experts\" is ", shared,
                     "; it must be 0 or more, and few of their size"));
  }
  mixture.shared_intermediate = shared * mixture.intermediate;
  TESSERA_RETURN_IF_ERROR(
      Read(object, "first_k_dense_replace", mixture.dense_layers));
  return Read(object, "routed_scaling_factor", mixture.scale);
}

void AddMixture(const ModelConfig& model, nlohmann::ordered_json& object) {
  const MixtureTraits& keys = model.traits().mixture;
  const MixtureConfig& mixture = model.mixture;
  if (keys.experts == nullptr) return;
  object[keys.experts] = mixture.experts;
  object["num_experts_per_tok"] = mixture.per_token;
  object[keys.intermediate] = mixture.intermediate;
  if (keys.normalise != nullptr) object[keys.normalise] = mixture.normalise;
  if (keys.balance != nullptr) object[keys.balance] = mixture.balance;
  if (!keys.like_deepseek) return;
  object["n_shared_experts"] =
      mixture.shared_intermediate / mixture.intermediate;
  object["first_k_dense_replace"] = mixture.dense_layers;
  object["routed_scaling_factor"] = mixture.scale;
  object["n_group"] = mixture.groups;
  object["topk_group"] = mixture.groups_per_token;
  if (keys.has_group_method) {
    object["topk_method"] = mixture.groups > 1 ? kGroupLimited : kGreedy;
  }
}

absl::Status ReadModel(const Json& object, ModelConfig& model) {
  const ArchitectureTraits& traits = model.traits();
  model.max_positions = traits.max_positions;
  model.rotary.base = traits.rope_theta;
  model.norm_epsilon = traits.norm_epsilon;
  TESSERA_RETURN_IF_ERROR(ReadNeeded(object, "vocab_size", model.vocabulary));
  TESSERA_RETURN_IF_ERROR(ReadNeeded(object, "hidden_size", model.hidden));
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, "intermediate_size", model.intermediate));
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, "num_hidden_layers", model.layers));
  TESSERA_RETURN_IF_ERROR(model.ValidateLayerCount());
  TESSERA_RETURN_IF_ERROR(
      ReadNeeded(object, "num_attention_heads", model.heads));
  const bool has_usual = traits.kv_heads > 0 &&
                         !object.contains("num_key_value_heads");  // Not null.
  model.kv_heads = has_usual ? traits.kv_heads : model.heads;
  TESSERA_RETURN_IF_ERROR(Read(object, "num_key_value_heads", model.kv_heads));
  const int64_t usual = traits.head_size;
  model.head_size = usual > 0         ? usual
                    : model.heads > 0 ? model.hidden / model.heads
                                      : 0;
  TESSERA_RETURN_IF_ERROR(Read(object, "head_dim", model.head_size));
  TESSERA_RETURN_IF_ERROR(ReadLatent(object, traits.latent, model));
  if (Find(object, "head_dim") == nullptr && usual == 0 && model.heads > 0 &&
      model.hidden % model.heads != 0 && !model.IsLatent()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key \"head_dim\" is missing, and num_attention_heads ", model.heads,
        " does not divide hidden_size ", model.hidden));
  }
  TESSERA_RETURN_IF_ERROR(Read(object, "rms_norm_eps", model.norm_epsilon));
  model.tied_embeddings = traits.tied_embeddings;
  TESSERA_RETURN_IF_ERROR(
      Read(object, "tie_word_embeddings", model.tied_embeddings));
  TESSERA_RETURN_IF_ERROR(
      Read(object, "max_position_embeddings", model.max_positions));
  TESSERA_RETURN_IF_ERROR(
      Read(object, "initializer_range", model.initializer_range));
  TESSERA_RETURN_IF_ERROR(ReadRope(object, model));
  TESSERA_RETURN_IF_ERROR(ReadNoRopeLayers(object, traits.rope, model));
  TESSERA_RETURN_IF_ERROR(ReadScores(object, traits.scores, model));
  TESSERA_RETURN_IF_ERROR(ReadBiases(object, traits, model));
  TESSERA_RETURN_IF_ERROR(ReadWindows(object, traits.windows, model));
  TESSERA_RETURN_IF_ERROR(ReadMixture(object, traits.mixture, model));
  TESSERA_RETURN_IF_ERROR(CheckActivation(object, traits.glu));
  return model.Validate();
}

// Reads "eos_token_id", a number or an array of numbers; leaves `ends`
// unchanged if there is none.
absl::Status ReadEnds(const Json& object, std::vector<int64_t>& ends) {
  const Json* const eos = Find(object, "eos_token_id");
  if (eos == nullptr) return absl::OkStatus();
  ends.clear();
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    TESSERA_RETURN_IF_ERROR(
        ReadInteger("eos_token_id", id, ends.emplace_back()));
  }
  return absl::OkStatus();
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

// A key that is missing, unlike null, has the default of the architecture.
absl::Status ReadTokens(const Json& object, HuggingFaceConfig& config) {
  const ArchitectureTraits& traits = config.model.traits();
  if (!object.contains("bos_token_id")) {
    config.bos_token_id = traits.bos_token_id;
  } else if (const Json* const bos = Find(object, "bos_token_id")) {
    TESSERA_RETURN_IF_ERROR(
        ReadInteger("bos_token_id", *bos, config.bos_token_id.emplace()));
  }
  if (!object.contains("eos_token_id") && traits.eos_token_id.has_value()) {
    config.eos_token_ids = {*traits.eos_token_id};
  }
  return ReadEnds(object, config.eos_token_ids);
}

// Adds the keys of the model's own config.json that FormatHuggingFaceConfig
// does not compute.
void AddOtherKeys(const Json& source, nlohmann::ordered_json& object) {
  // Other names of keys that are written, and the form of quantised weights,
  // which are not written.
  constexpr std::string_view kAliases[] = {
      "quantization_config", "rope_parameters", "dtype",
      "torch_dtype",         "layer_types",     "num_experts",
      "num_local_experts",   "n_routed_experts"};
  for (const auto& [key, value] : source.items()) {
    const bool is_token = key == "bos_token_id" || key == "eos_token_id";
    const bool is_computed =
        object.contains(key) || absl::c_linear_search(kAliases, key);
    if (is_token || !is_computed) object[key] = value;
  }
}

absl::StatusOr<Json> ParseObject(std::string_view json) {
  TESSERA_ASSIGN_OR_RETURN(
      Json object,
      ParseJson(json, {.max_bytes = kMaxModelConfigBytes, .max_depth = 16}));
  if (object.is_object()) return object;
  return absl::InvalidArgumentError(
      absl::StrCat("expected an object such as {\"model_type\": \"llama\", "
                   "...}, found ",
                   DescribeJson(object)));
}

void AddTokens(const HuggingFaceConfig& config,
               nlohmann::ordered_json& object) {
  if (config.bos_token_id.has_value()) {
    object["bos_token_id"] = *config.bos_token_id;
  }
  if (config.eos_token_ids.size() == 1) {
    object["eos_token_id"] = config.eos_token_ids[0];
  } else if (!config.eos_token_ids.empty()) {
    object["eos_token_id"] = config.eos_token_ids;
  }
}

// The name of the type in torch.
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
  TESSERA_ASSIGN_OR_RETURN(const Json object, ParseObject(json));
  HuggingFaceConfig config;
  TESSERA_ASSIGN_OR_RETURN(config.model.architecture, ReadArchitecture(object));
  TESSERA_RETURN_IF_ERROR(CheckFixedKeys(object, config.model.traits()));
  TESSERA_RETURN_IF_ERROR(ReadModel(object, config.model));
  TESSERA_RETURN_IF_ERROR(ReadDType(object, config.dtype));
  TESSERA_RETURN_IF_ERROR(ReadTokens(object, config));
  return config;
}

absl::StatusOr<std::string> FormatHuggingFaceConfig(
    const HuggingFaceConfig& config, std::string_view source) {
  const ModelConfig& model = config.model;
  TESSERA_RETURN_IF_ERROR(model.Validate());
  const ArchitectureTraits& traits = model.traits();
  const bool is_gelu = traits.glu == tensor_parallel::GluKind::kGeGlu;
  nlohmann::ordered_json object = {
      {"architectures", {traits.class_name}},
      {"model_type", traits.model_type},
      {"vocab_size", model.vocabulary},
      {"hidden_size", model.hidden},
      {"intermediate_size", model.intermediate},
      {"num_hidden_layers", model.layers},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", model.head_size},
      {"hidden_act", is_gelu ? kGelu : kSilu},
      {"rms_norm_eps", model.norm_epsilon},
      {"tie_word_embeddings", model.tied_embeddings},
      {"max_position_embeddings", model.max_positions},
      {"initializer_range", model.initializer_range},
      {"attention_bias", model.qkv_bias},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
  };
  AddRope(model, object);
  AddWindows(model, object);
  AddScores(model, object);
  AddLatent(model, object);
  AddMixture(model, object);
  if (is_gelu) object["hidden_activation"] = kGelu;
  if (traits.glu == tensor_parallel::GluKind::kClampedGlu) {
    object["swiglu_limit"] = tensor_parallel::clamped_glu::kLimit;
    object["swiglu_alpha"] = tensor_parallel::clamped_glu::kGain;
  }
  if (config.dtype.has_value()) {
    object["torch_dtype"] = TorchName(*config.dtype);
  }
  if (source.empty()) {
    AddTokens(config, object);
    return DumpJson(object, 2) + "\n";
  }
  TESSERA_ASSIGN_OR_RETURN(const Json own, ParseObject(source));
  HuggingFaceConfig tokens = {.model = model};
  TESSERA_RETURN_IF_ERROR(ReadTokens(own, tokens));
  AddTokens(tokens, object);
  AddOtherKeys(own, object);
  return DumpJson(object, 2) + "\n";
}

namespace {

// The error of a config.json that could not be read, with what its directory is
// instead.
absl::Status ExplainMissingConfig(const std::string& path,
                                  const absl::Status& status) {
  const std::string directory =
      std::filesystem::path(path).parent_path().string();
  const auto explain = [&](std::string_view what) {
    return absl::Status(status.code(),
                        absl::StrCat(QuotedPath(directory), what));
  };
  if (directory.empty()) return status;
  if (!PathExists(directory)) {
    return explain(
        " does not exist; give a directory with config.json and safetensors, "
        "such as \"hf download MODEL --local-dir=DIRECTORY\" makes");
  }
  if (!IsDirectory(directory)) {
    return explain(" is a file; give the directory with config.json");
  }
  if (PathExists(absl::StrCat(directory, "/adapter_config.json"))) {
    return explain(
        " has the adapters of PEFT, without their model; give a model to which "
        "PEFT's merge_and_unload() has added them");
  }
  return status;
}

}  // namespace

absl::StatusOr<HuggingFaceConfig> LoadHuggingFaceConfig(
    const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ReadFile(path, kMaxModelConfigBytes),
                           ExplainMissingConfig(path, _));
  TESSERA_ASSIGN_OR_RETURN(HuggingFaceConfig config,
                           ParseHuggingFaceConfig(json),
                           Annotate(_, QuotedPath(path)));
  return config;
}

absl::Status SaveHuggingFaceConfig(const HuggingFaceConfig& config,
                                   const std::string& path,
                                   std::string_view source) {
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           FormatHuggingFaceConfig(config, source),
                           Annotate(_, QuotedPath(path)));
  return WriteFile(path, json);
}

absl::StatusOr<ModelSource> LoadModelSource(const std::string& directory) {
  ModelSource source;
  for (const auto& [name, text] :
       {std::pair("config.json", &source.config),
        std::pair("generation_config.json", &source.generation_config)}) {
    const std::string path = absl::StrCat(directory, "/", name);
    absl::StatusOr<std::string> read = ReadFile(path, kMaxModelConfigBytes);
    if (absl::IsNotFound(read.status())) continue;
    TESSERA_RETURN_IF_ERROR(read.status());
    TESSERA_RETURN_IF_ERROR(ParseObject(*read).status(),
                            Annotate(_, QuotedPath(path)));
    *text = *std::move(read);
  }
  return source;
}

absl::StatusOr<std::vector<int64_t>> EndsOfText(const ModelSource& source) {
  std::vector<int64_t> ends;
  for (const std::string* const text :
       {&source.config, &source.generation_config}) {
    if (text->empty()) continue;
    TESSERA_ASSIGN_OR_RETURN(const Json object, ParseObject(*text));
    std::vector<int64_t> some;
    TESSERA_RETURN_IF_ERROR(ReadEnds(object, some));
    ends.insert(ends.end(), some.begin(), some.end());
  }
  if (ends.empty() && !source.config.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const HuggingFaceConfig config,
                             ParseHuggingFaceConfig(source.config));
    ends = config.eos_token_ids;
  }
  absl::c_sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace tessera::model_files
