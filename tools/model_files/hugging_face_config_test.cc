#include "tools/model_files/hugging_face_config.h"

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/model_files/architectures.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"

namespace tessera::model_files {
namespace {

using Json = nlohmann::json;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The keys of SmolLM2-135M's config.json.
constexpr char kSmolLm2[] = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0,
  "hidden_act": "silu", "hidden_size": 576,
  "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
  "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
  "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "vocab_size": 49152})";

// Written by version 5 of transformers.
constexpr char kVersion5[] = R"({
  "architectures": ["LlamaForCausalLM"], "dtype": "float32", "head_dim": 32,
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": [2, 7], "hidden_act": "silu", "hidden_size": 128,
  "initializer_range": 0.02, "intermediate_size": 512,
  "max_position_embeddings": 1024, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 4, "num_hidden_layers": 4, "num_key_value_heads": 2,
  "pad_token_id": null, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
  "tie_word_embeddings": false, "use_cache": true, "vocab_size": 264})";

// The keys of Llama-3.1-8B's config.json.
constexpr char kLlama31[] = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})";

// The keys of Qwen2.5-0.5B's config.json.
constexpr char kQwen2[] = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
  "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 24,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936})";

// The keys of Mistral-7B-v0.3's config.json.
constexpr char kMistral[] = R"({
  "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 32768})";

// The keys of Qwen3-0.6B's config.json.
constexpr char kQwen3[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
  "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
  "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28,
  "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";

// The keys of gemma-2b's config.json.
constexpr char kGemma[] = R"({
  "architectures": ["GemmaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1,
  "head_dim": 256, "hidden_act": "gelu", "hidden_activation": null,
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384,
  "max_position_embeddings": 8192, "model_type": "gemma",
  "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
  "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 10000.0, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 256000})";

std::string Replaced(std::string_view json, std::string_view what,
                     std::string_view with) {
  EXPECT_NE(json.find(what), json.npos) << what;
  return absl::StrReplaceAll(json, {{what, with}});
}

TEST(HuggingFaceConfigTest, ReadsBothTransformersFormats) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig smol,
                               ParseHuggingFaceConfig(kSmolLm2));
  EXPECT_EQ(smol.model, *PresetConfig("smollm2-135m"));
  EXPECT_EQ(smol.dtype, DType::kBF16);
  EXPECT_EQ(smol.bos_token_id, 0);
  EXPECT_THAT(smol.eos_token_ids, ElementsAre(0));

  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig five,
                               ParseHuggingFaceConfig(kVersion5));
  ModelConfig expected = *PresetConfig("llama-1m");
  expected.rotary.base = 500000;
  EXPECT_EQ(five.model, expected);
  EXPECT_EQ(five.dtype, DType::kF32);
  EXPECT_THAT(five.eos_token_ids, ElementsAre(2, 7));
}

// The parameter counts are from the model cards.
TEST(HuggingFaceConfigTest, ReadsLlama31MistralQwen2AndQwen3) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig llama,
                               ParseHuggingFaceConfig(kLlama31));
  EXPECT_EQ(llama.model.rotary,
            (tensor_parallel::RotaryFrequencies{
                .base = 500000,
                .scaling = tensor_parallel::RotaryScaling::kLlama3,
                .factor = 8,
                .low_turns = 1,
                .high_turns = 4,
                .original_positions = 8192}));
  EXPECT_EQ(llama.model.ParameterCount(), 8'030'261'248);

  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig qwen,
                               ParseHuggingFaceConfig(kQwen2));
  EXPECT_EQ(qwen.model.architecture, Architecture::kQwen2);
  EXPECT_TRUE(qwen.model.qkv_bias);
  EXPECT_FALSE(qwen.model.output_bias);
  EXPECT_EQ(qwen.model.ParameterCount(), 494'032'768);

  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig mistral,
                               ParseHuggingFaceConfig(kMistral));
  EXPECT_EQ(mistral.model.architecture, Architecture::kMistral);
  EXPECT_FALSE(mistral.model.qkv_bias);
  EXPECT_EQ(mistral.model.ParameterCount(), 7'248'023'552);

  EXPECT_EQ(mistral.model.window, 0);

  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig qwen3,
                               ParseHuggingFaceConfig(kQwen3));
  EXPECT_EQ(qwen3.model.architecture, Architecture::kQwen3);
  EXPECT_TRUE(qwen3.model.traits().qk_norm);
  EXPECT_EQ(qwen3.model.ParameterCount(), 596'049'920);

  for (const HuggingFaceConfig& config : {llama, qwen, mistral, qwen3}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                                 FormatHuggingFaceConfig(config));
    EXPECT_THAT(ParseHuggingFaceConfig(json), IsOkAndHolds(config)) << json;
  }
}

TEST(HuggingFaceConfigTest, ReadsGemma) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig gemma,
                               ParseHuggingFaceConfig(kGemma));
  EXPECT_EQ(gemma.model, *PresetConfig("gemma-2b"));
  EXPECT_TRUE(gemma.model.tied_embeddings);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                               FormatHuggingFaceConfig(gemma));
  EXPECT_THAT(ParseHuggingFaceConfig(json), IsOkAndHolds(gemma)) << json;
  EXPECT_THAT(json, HasSubstr("\"hidden_act\": \"gelu_pytorch_tanh\""));
  for (const char* act : {"silu", "relu"}) {
    EXPECT_THAT(ParseHuggingFaceConfig(Replaced(kGemma, "\"gelu\"",
                                                absl::StrCat("\"", act, "\""))),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("hidden_act"), HasSubstr(act),
                               HasSubstr("\"gelu_pytorch_tanh\""))));
  }
  EXPECT_THAT(ParseHuggingFaceConfig(
                  Replaced(kQwen3, "\"silu\"", "\"gelu_pytorch_tanh\"")),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("supported is \"silu\"")));
}

TEST(HuggingFaceConfigTest, ReadsSlidingWindows) {
  const auto windows = [](std::string_view json) -> std::vector<int64_t> {
    const absl::StatusOr<HuggingFaceConfig> config =
        ParseHuggingFaceConfig(json);
    EXPECT_THAT(config, IsOk());
    if (!config.ok()) return {};
    const absl::StatusOr<std::string> written =
        FormatHuggingFaceConfig(*config);
    EXPECT_THAT(written, IsOk());
    EXPECT_THAT(ParseHuggingFaceConfig(*written), IsOkAndHolds(*config));
    return {config->model.window, config->model.window_begin};
  };
  const std::string v01 =
      Replaced(kMistral, "window\": null", "window\": 4096");
  EXPECT_THAT(windows(v01), ElementsAre(4096, 0));
  EXPECT_THAT(windows(kMistral), ElementsAre(0, 0));
  EXPECT_THAT(windows(Replaced(kMistral, "\"sliding_window\": null,", "")),
              ElementsAre(4096, 0));
  const std::string used =
      Replaced(kQwen2, "window\": false", "window\": true");
  // max_window_layers equals the number of layers.
  EXPECT_THAT(windows(used), ElementsAre(0, 0));
  EXPECT_THAT(windows(Replaced(used, "layers\": 24,\n  \"model",
                               "layers\": 21,\n  \"model")),
              ElementsAre(32768, 21));
  std::vector<std::string> types(28, "\"full_attention\"");
  const auto with_types = [&](std::string_view window) {
    return Replaced(
        kQwen3,
        "\"sliding_window\": null, \"tie_word_embeddings\": true,\n"
        "  \"torch_dtype\": \"bfloat16\", \"use_cache\": true, "
        "\"use_sliding_window\": false",
        absl::StrCat("\"tie_word_embeddings\": true, ", window,
                     "\"layer_types\": [", absl::StrJoin(types, ", "), "]"));
  };
  constexpr std::string_view kWindow =
      "\"use_sliding_window\": true, \"sliding_window\": 128, ";
  EXPECT_THAT(windows(with_types("")), ElementsAre(0, 0));
  EXPECT_THAT(windows(with_types(kWindow)), ElementsAre(0, 0));
  types[26] = types[27] = "\"sliding_attention\"";
  EXPECT_THAT(windows(with_types(kWindow)), ElementsAre(128, 26));
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kUnimplemented,
                    AllOf(HasSubstr("supported"), HasSubstr(words)...));
  };
  EXPECT_THAT(ParseHuggingFaceConfig(with_types("")),
              refused("\"layer_types\": \"sliding_attention\""));
  types.pop_back();
  EXPECT_THAT(
      ParseHuggingFaceConfig(with_types(kWindow)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("\"layer_types\" has 27 elements; it must have "
                         "one for each of the 28 layers")));
  EXPECT_THAT(
      ParseHuggingFaceConfig(Replaced(v01, "window\": 4096", "window\": 0")),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("\"sliding_window\" is 0; it must be 1 or more")));
}

// Keys of architectures and types of rotary positions that have them.
void AddOwnKeys(const ModelConfig& model, Json& resolved) {
  using tensor_parallel::RotaryScaling;
  const ArchitectureTraits& traits = TraitsOf(model.architecture);
  const tensor_parallel::RotaryFrequencies& rotary = model.rotary;
  const bool is_yarn = rotary.scaling == RotaryScaling::kYarn;
  const bool is_longrope = rotary.scaling == RotaryScaling::kLongRope;
  if (is_yarn || is_longrope) {
    resolved["attention_factor"] = rotary.attention_factor;
  }
  if (is_yarn) {
    resolved["turns"] = {rotary.low_turns, rotary.high_turns, rotary.truncate};
  }
  if (is_longrope) {
    resolved["divisors"] = {rotary.short_factors, rotary.long_factors};
  }
  if (traits.rope.partial) resolved["partial"] = rotary.partial;
  if (traits.rope.no_rope_interval > 0) {
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      resolved["turned_layers"].push_back(model.RotaryOf(layer) ? 1 : 0);
    }
  }
  if (model.local_rotary) resolved["local_theta"] = model.local_rotary->base;
  if (model.IsLatent()) {
    const LatentConfig& latent = model.latent;
    resolved["latent"] = {latent.query_rank, latent.kv_rank,
                          latent.nope,       latent.rope,
                          latent.value,      latent.interleaved};
    resolved["groups"] = {model.mixture.groups, model.mixture.groups_per_token};
    resolved["score_scale"] = absl::StrFormat("%.12g", model.ScoreScale());
  }
  if (traits.scores.scalar == 0) return;
  const auto cap = [](double value) {
    return value > 0 ? Json(value) : Json();
  };
  resolved["scalar"] = model.score_scalar;
  resolved["caps"] = {cap(model.attention_cap), cap(model.final_cap)};
}

// The name of a type of rotary positions.
std::string TypeOf(tensor_parallel::RotaryScaling scaling) {
  using tensor_parallel::RotaryScaling;
  switch (scaling) {
    case RotaryScaling::kNone:
      return "default";
    case RotaryScaling::kLinear:
      return "linear";
    case RotaryScaling::kDynamic:
      return "dynamic";
    case RotaryScaling::kYarn:
      return "yarn";
    case RotaryScaling::kLongRope:
      return "longrope";
    case RotaryScaling::kLlama3:
      return "llama3";
  }
  return "";
}

// The values of a config.json under the keys of
// testdata/transformers_defaults.json.
Json Resolved(const HuggingFaceConfig& config) {
  using tensor_parallel::RotaryScaling;
  const ModelConfig& model = config.model;
  const ArchitectureTraits& traits = TraitsOf(model.architecture);
  Json windows = Json::array();
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    windows.push_back(model.WindowOf(layer));
  }
  const RotaryScaling scaling = model.rotary.scaling;
  const bool is_longrope = scaling == RotaryScaling::kLongRope;
  const bool has_factor = scaling != RotaryScaling::kNone && !is_longrope;
  const bool has_original = scaling == RotaryScaling::kLlama3 ||
                            scaling == RotaryScaling::kYarn || is_longrope;
  const auto if_given = [](const auto& value) {
    return value.has_value() ? Json(*value) : Json();
  };
  Json resolved = {
      {"kv_heads", model.kv_heads},
      {"head_size", model.head_size},
      {"max_positions", model.max_positions},
      {"initializer_range", model.initializer_range},
      {"norm_epsilon", model.norm_epsilon},
      {"tied", model.tied_embeddings},
      {"attention_bias", model.output_bias},
      {"hidden_act", model.traits().glu == tensor_parallel::GluKind::kGeGlu
                         ? "gelu_pytorch_tanh"
                         : "silu"},
      {"windows", windows},
      {"rope",
       {TypeOf(scaling), model.rotary.base,
        has_factor ? Json(model.rotary.factor) : Json(),
        has_original ? Json(model.rotary.original_positions) : Json()}},
      {"bos", if_given(config.bos_token_id)},
      {"eos", config.eos_token_ids},
      {"dtype", config.dtype == DType::kF16    ? Json("float16")
                : config.dtype == DType::kBF16 ? Json("bfloat16")
                : config.dtype == DType::kF32  ? Json("float32")
                                               : Json()}};
  AddOwnKeys(model, resolved);
  const MixtureConfig& mixture = model.mixture;
  if (mixture.experts == 0) return resolved;
  resolved["experts"] = mixture.experts;
  resolved["experts_per_token"] = mixture.per_token;
  resolved["expert_size"] = mixture.intermediate;
  resolved["normalise"] = mixture.normalise;
  resolved["balance"] = mixture.balance;
  if (!traits.mixture.like_deepseek) return resolved;
  resolved["shared_experts"] =
      mixture.shared_intermediate / mixture.intermediate;
  resolved["dense_layers"] = mixture.dense_layers;
  resolved["expert_scale"] = mixture.scale;
  return resolved;
}

// The config of a case: null removes a key, "null" sets it to null.
Json Changed(Json config, const Json& change) {
  for (const auto& [key, value] : change.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value == "null" ? Json() : value;
    }
  }
  return config;
}

// The table contains how transformers 5.24 resolves a config.json of each
// architecture, the same without each optional key, and with other names and
// forms of keys.
TEST(HuggingFaceConfigTest, ResolvesKeysAsTransformersDoes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string text,
      ReadFile("tools/model_files/testdata/transformers_defaults.json",
               1 << 20));
  const Json table = Json::parse(text);
  std::vector<std::string> seen;
  const auto check = [](const Json& config, Json expected, const Json& change) {
    expected.update(change);
    TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig read,
                                 ParseHuggingFaceConfig(config.dump()));
    EXPECT_EQ(Resolved(read), expected) << config;
    // The written file says the same without any default.
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string written,
                                 FormatHuggingFaceConfig(read, config.dump()));
    TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig again,
                                 ParseHuggingFaceConfig(written));
    EXPECT_EQ(Resolved(again), expected) << written;
  };
  for (const Json& entry : table["architectures"]) {
    const Json& config = entry["config"];
    seen.push_back(config["model_type"]);
    check(config, entry["expected"], Json::object());
    EXPECT_GE(entry["without"].size(), 11) << config;
    for (const auto& [key, change] : entry["without"].items()) {
      SCOPED_TRACE(key);
      check(Changed(config, {{key, nullptr}}), entry["expected"], change);
    }
    for (const Json& with : entry["with"]) {
      check(Changed(config, with["change"]), entry["expected"],
            with["expected"]);
    }
  }
  std::vector<std::string> all;
  for (const ArchitectureTraits& traits : AllArchitectures()) {
    all.emplace_back(traits.model_type);
  }
  EXPECT_THAT(seen, testing::UnorderedElementsAreArray(all));
}

TEST(HuggingFaceConfigTest, RejectsHugeLayerCountBeforeLoopsOverLayers) {
  for (const char* const type : {"gpt_oss", "gemma2", "smollm3"}) {
    const Json sizes = {{"model_type", type},
                        {"vocab_size", 100},
                        {"hidden_size", 64},
                        {"intermediate_size", 96},
                        {"num_hidden_layers", int64_t{1} << 60},
                        {"num_attention_heads", 4}};
    EXPECT_THAT(ParseHuggingFaceConfig(sizes.dump()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("layers (num_hidden_layers)")));
  }
}

TEST(HuggingFaceConfigTest, AllowsOnlyTheQuantisationAndLimitsOfGptOss) {
  const Json sizes = {{"model_type", "gpt_oss"}, {"vocab_size", 100},
                      {"hidden_size", 64},       {"intermediate_size", 96},
                      {"num_hidden_layers", 2},  {"num_attention_heads", 16}};
  const auto parse = [&](const Json& change) {
    return ParseHuggingFaceConfig(Changed(sizes, change).dump());
  };
  const Json mxfp4 = {{"quantization_config", {{"quant_method", "mxfp4"}}}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceConfig config, parse(mxfp4));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string written,
      FormatHuggingFaceConfig(config, Changed(sizes, mxfp4).dump()));
  EXPECT_THAT(written, testing::Not(HasSubstr("quantization_config")));
  const auto refused = [](std::string_view text) {
    return StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(text));
  };
  EXPECT_THAT(parse({{"quantization_config", {{"quant_method", "bnb"}}}}),
              refused("\"quant_method\": \"bnb\" is not supported; supported "
                      "is \"mxfp4\""));
  EXPECT_THAT(parse({{"quantization_config", Json::object()}}),
              refused("quant_method"));
  EXPECT_THAT(parse({{"swiglu_limit", 6}}), refused("supported is 7"));
  EXPECT_THAT(parse({{"swiglu_alpha", 1.7}}), refused("supported is 1.702"));
  Json llama = Changed(sizes, mxfp4);
  llama["model_type"] = "llama";
  EXPECT_THAT(ParseHuggingFaceConfig(llama.dump()),
              refused("quantization_config"));
}

TEST(HuggingFaceConfigTest, RejectsUnsupportedDeepSeek) {
  const Json v3 = {{"model_type", "deepseek_v3"}, {"vocab_size", 100},
                   {"hidden_size", 64},           {"intermediate_size", 96},
                   {"num_hidden_layers", 4},      {"num_attention_heads", 4},
                   {"num_key_value_heads", 4}};
  Json v2 = Changed(v3, {{"model_type", "deepseek_v2"}});
  v2["num_experts_per_tok"] = 2;
  TESSERA_EXPECT_OK(ParseHuggingFaceConfig(v2.dump()));
  TESSERA_EXPECT_OK(ParseHuggingFaceConfig(v3.dump()));
  const auto expect = [](const Json& config, const Json& change,
                         std::string_view words) {
    const auto read = ParseHuggingFaceConfig(Changed(config, change).dump());
    EXPECT_THAT(read.status().message(), HasSubstr(words)) << change;
  };
  expect(v2, {{"norm_topk_prob", true}},
         "key \"norm_topk_prob\": true is not supported; supported is false");
  expect(v2, {{"topk_method", "noaux_tc"}},
         "supported is \"greedy\" and \"group_limited_greedy\"");
  expect(v2, {{"topk_method", "group_limited_greedy"}},
         "key \"n_group\" is missing");
  expect(v2, {{"num_experts_per_tok", nullptr}},
         "key \"num_experts_per_tok\" is missing");
  expect(v2, {{"moe_layer_freq", 2}}, "key \"moe_layer_freq\": 2");
  expect(v3, {{"num_key_value_heads", 2}},
         "kv_heads (num_key_value_heads) is 2; with latent attention it must "
         "be heads (num_attention_heads), 4");
  expect(v3, {{"v_head_dim", 256}},
         "latent.value (v_head_dim) is 256; it must be from 1 to 192");
  expect(v3, {{"qk_rope_head_dim", 31}},
         "latent.rope (qk_rope_head_dim) is 31; it must be even");
  expect(v3, {{"q_lora_rank", 0}}, "key \"q_lora_rank\" is 0");
  expect(v3, {{"n_group", 7}},
         "groups (n_group) is 7; it must divide the 256 experts, from 1 to 64");
  expect(v3, {{"topk_group", 9}},
         "groups_per_token (topk_group) is 9; it must be from 1, for 8 experts "
         "of a token, to the number of groups, 8");
  expect(v3, {{"attention_bias", true}}, "key \"attention_bias\": true");
}

TEST(HuggingFaceConfigTest, NeedsSizes) {
  const Json sizes = {{"model_type", "llama"},  {"vocab_size", 100},
                      {"hidden_size", 64},      {"intermediate_size", 96},
                      {"num_hidden_layers", 2}, {"num_attention_heads", 4}};
  EXPECT_THAT(ParseHuggingFaceConfig(sizes.dump()), IsOk());
  for (const auto& [key, value] : sizes.items()) {
    EXPECT_THAT(
        ParseHuggingFaceConfig(Changed(sizes, {{key, nullptr}}).dump()),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("key \"", key, "\" is missing"))));
  }
}

TEST(HuggingFaceConfigTest, KeepsOtherKeysOfSource) {
  Json source = Json::parse(kSmolLm2);
  source["eos_token_id"] = {2};
  source["pad_token_id"] = 3;
  source["task_specific_params"] = {{"a", {1.5, nullptr, "\u00e9"}}};
  source["dtype"] = source["torch_dtype"];
  source["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  source["rms_norm_eps"] = 0.5;
  TESSERA_ASSERT_OK_AND_ASSIGN(HuggingFaceConfig config,
                               ParseHuggingFaceConfig(source.dump()));
  config.dtype = DType::kF16;
  config.model.norm_epsilon = 0.25;  // The model wins.
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               FormatHuggingFaceConfig(config, source.dump()));
  const Json written = Json::parse(text);
  for (const char* key : {"eos_token_id", "pad_token_id", "use_cache",
                          "task_specific_params", "rope_interleaved"}) {
    EXPECT_EQ(written[key], source[key]) << key;
  }
  EXPECT_EQ(written["rms_norm_eps"], 0.25);
  EXPECT_EQ(written["torch_dtype"], "float16");
  EXPECT_FALSE(written.contains("dtype"));
  EXPECT_FALSE(written.contains("rope_parameters"));
  EXPECT_THAT(FormatHuggingFaceConfig(config, "[]"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected an object")));
}

TEST(HuggingFaceConfigTest, EndsOfTextAreThoseOfBothFiles) {
  const std::string sizes =
      R"("vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 2, "num_attention_heads": 4})";
  const std::string llama = R"({"model_type": "llama", )";
  EXPECT_THAT(EndsOfText({}), IsOkAndHolds(ElementsAre()));
  EXPECT_THAT(EndsOfText({.config = llama + sizes}),
              IsOkAndHolds(ElementsAre(2)));
  EXPECT_THAT(
      EndsOfText({.config = llama + R"("eos_token_id": [7, 5], )" + sizes,
                  .generation_config = R"({"eos_token_id": 6})"}),
      IsOkAndHolds(ElementsAre(5, 6, 7)));
  EXPECT_THAT(EndsOfText({.config = llama + sizes,
                          .generation_config = R"({"eos_token_id": [9, 9]})"}),
              IsOkAndHolds(ElementsAre(9)));
  EXPECT_THAT(
      EndsOfText({.generation_config = R"({"eos_token_id": "x"})"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("eos_token_id")));
}

TEST(HuggingFaceConfigTest, LoadsFilesOfModel) {
  const std::string directory = testing::TempDir() + "/source_of_model";
  ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
  EXPECT_THAT(LoadModelSource(directory), IsOkAndHolds(ModelSource()));
  TESSERA_ASSERT_OK(WriteFile(directory + "/config.json", kSmolLm2));
  TESSERA_ASSERT_OK(WriteFile(directory + "/generation_config.json", "{}"));
  EXPECT_THAT(LoadModelSource(directory),
              IsOkAndHolds(ModelSource{.config = std::string(kSmolLm2),
                                       .generation_config = "{}"}));
  TESSERA_ASSERT_OK(WriteFile(directory + "/generation_config.json", "{"));
  EXPECT_THAT(LoadModelSource(directory),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("/generation_config.json")));
}

TEST(HuggingFaceConfigTest, EveryPresetRoundTrips) {
  for (const std::string_view name : PresetNames()) {
    HuggingFaceConfig config = {.model = *PresetConfig(name)};
    for (const auto& eos :
         {std::vector<int64_t>{}, std::vector<int64_t>{5}, {5, 6}}) {
      config.eos_token_ids = eos;
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                                   FormatHuggingFaceConfig(config));
      EXPECT_THAT(ParseHuggingFaceConfig(json), IsOkAndHolds(config)) << json;
      config.dtype = DType::kBF16;
      config.bos_token_id = 3;
    }
  }
}

TEST(HuggingFaceConfigTest, RejectsUnsupportedFeaturesAndNamesKey) {
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kUnimplemented,
                    AllOf(HasSubstr("supported"), HasSubstr(words)...));
  };
  const auto with = [](std::string_view key_and_value) {
    return ParseHuggingFaceConfig(
        Replaced(kSmolLm2, "\"use_cache\": true", key_and_value));
  };
  const auto instead = [](std::string_view what, std::string_view value) {
    return ParseHuggingFaceConfig(Replaced(kSmolLm2, what, value));
  };
  EXPECT_THAT(instead("\"mlp_bias\": false", "\"mlp_bias\": true"),
              refused("\"mlp_bias\": true"));
  TESSERA_EXPECT_OK(
      instead("\"attention_bias\": false", "\"attention_bias\": true"));
  EXPECT_THAT(instead("\"silu\"", "\"gelu\""),
              refused("\"hidden_act\": \"gelu\"", "\"silu\""));
  EXPECT_THAT(instead("\"model_type\": \"llama\"", "\"model_type\": \"gpt2\""),
              refused("\"model_type\"", "\"gpt2\"", "\"llama\""));
  EXPECT_THAT(instead("LlamaForCausalLM", "MistralForCausalLM"),
              refused("\"architectures\"", "Mistral", "LlamaForCausalLM"));
  EXPECT_THAT(instead("\"rope_scaling\": null",
                      R"("rope_scaling": {"rope_type": "ntk", "factor": 8})"),
              refused("\"rope_scaling\": key \"rope_type\"", "\"ntk\"",
                      "\"default\", \"linear\", \"dynamic\", \"yarn\", "
                      "\"longrope\", \"llama3\""));
  EXPECT_THAT(
      instead("\"rope_scaling\": null",
              R"("rope_scaling": {"type": "linear", "factor": 2.0, "x": 1})"),
      refused("key \"x\": 1", "rope_type and rope_theta, factor"));
  EXPECT_THAT(instead("\"rope_scaling\": null", R"("rope_scaling": {"x": 2})"),
              refused("key \"x\": 2"));
  EXPECT_THAT(
      instead("\"rope_interleaved\": false", "\"rope_interleaved\": true"),
      refused("rope_interleaved"));
  EXPECT_THAT(with(R"("quantization_config": {"bits": 4})"),
              refused("\"quantization_config\": an object", "dequantize()"));
  EXPECT_THAT(with("\"sliding_window\": 4096"), refused("sliding_window"));
  EXPECT_THAT(with("\"use_sliding_window\": true"),
              refused("\"use_sliding_window\": true"));
  std::vector<std::string> types(30, "\"full_attention\"");
  const auto with_types = [&] {
    return with(
        absl::StrCat("\"layer_types\": [", absl::StrJoin(types, ", "), "]"));
  };
  TESSERA_EXPECT_OK(with_types());
  types[3] = "\"sliding\"";
  EXPECT_THAT(with_types(),
              refused("\"layer_types\": \"sliding\"", "\"full_attention\""));
  EXPECT_THAT(ParseHuggingFaceConfig(
                  Replaced(kQwen2, "\"use_mrope\"", "\"attention_bias\"")),
              refused("\"attention_bias\": false", "supported is true"));
  EXPECT_THAT(ParseHuggingFaceConfig(
                  Replaced(kMistral, "\"use_cache\"", "\"attention_bias\"")),
              refused("\"attention_bias\": true", "supported is false"));
  EXPECT_THAT(with("\"partial_rotary_factor\": 0.5"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("partial_rotary_factor is 0.5; Llama turns "
                                 "whole heads: it must be 1")));
  TESSERA_EXPECT_OK(with("\"partial_rotary_factor\": 1.0"));
  TESSERA_EXPECT_OK(instead("\"rope_scaling\": null",
                            R"("rope_scaling": {"rope_type": "default"})"));
}

TEST(HuggingFaceConfigTest, RejectsMissingAndWrongValues) {
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(words)...));
  };
  const auto instead = [](std::string_view what, std::string_view value) {
    return ParseHuggingFaceConfig(Replaced(kSmolLm2, what, value));
  };
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "model_type"}) {
    EXPECT_THAT(instead(absl::StrCat("\"", key, "\""), "\"other\""),
                refused(absl::StrCat("key \"", key, "\" is missing")));
  }
  EXPECT_THAT(instead("\"hidden_size\": 576", "\"hidden_size\": 576.0"),
              refused("\"hidden_size\" must be an integer", "found 576.0"));
  EXPECT_THAT(instead("\"vocab_size\": 49152", "\"vocab_size\": \"49152\""),
              refused("\"vocab_size\"", "found \"49152\""));
  EXPECT_THAT(
      instead("\"vocab_size\": 49152", "\"vocab_size\": 9223372036854775808"),
      refused("an integer below 2^63"));
  EXPECT_THAT(instead("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": true"),
              refused("\"rms_norm_eps\" must be a number, found true"));
  EXPECT_THAT(
      instead("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1"),
      refused("\"tie_word_embeddings\" must be true or false, found 1"));
  EXPECT_THAT(instead("\"bfloat16\"", "\"int3\""),
              refused("key \"torch_dtype\"", "int3"));
  EXPECT_THAT(
      instead("\"num_key_value_heads\": 3", "\"num_key_value_heads\": 2"),
      refused("num_key_value_heads", "is 2; it must divide"));
  EXPECT_THAT(instead("\"hidden_size\": 576", "\"hidden_size\": 577"),
              refused("\"head_dim\" is missing", "does not divide"));
  EXPECT_THAT(instead("\"eos_token_id\": 0", "\"eos_token_id\": [0, \"x\"]"),
              refused("eos_token_id", "found \"x\""));
  EXPECT_THAT(ParseHuggingFaceConfig(Replaced(kLlama31, "low_freq", "other")),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(ParseHuggingFaceConfig(
                  Replaced(kLlama31, "\"low_freq_factor\": 1.0,", "")),
              refused("\"rope_scaling\": key \"low_freq_factor\" is missing"));
  EXPECT_THAT(ParseHuggingFaceConfig(
                  Replaced(kLlama31, "\"factor\": 8.0", "\"factor\": -8.0")),
              refused("rope_scaling: factor is -8"));
  EXPECT_THAT(ParseHuggingFaceConfig("[]"), refused("expected an object"));
  EXPECT_THAT(ParseHuggingFaceConfig(kSmolLm2 + std::string("}")),
              refused("invalid JSON"));
  EXPECT_THAT(FormatHuggingFaceConfig({}), refused("vocab_size"));
}

TEST(HuggingFaceConfigTest, FilesAreNamedInErrors) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/config.json");
  const HuggingFaceConfig config = {.model = *PresetConfig("llama-1m")};
  TESSERA_ASSERT_OK(SaveHuggingFaceConfig(config, path));
  EXPECT_THAT(LoadHuggingFaceConfig(path), IsOkAndHolds(config));
  EXPECT_THAT(SaveHuggingFaceConfig({}, path),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  EXPECT_THAT(LoadHuggingFaceConfig(path), IsOkAndHolds(config));
  std::ofstream(path) << "{}";
  EXPECT_THAT(LoadHuggingFaceConfig(path),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  EXPECT_THAT(LoadHuggingFaceConfig("/nix/config.json"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("\"/nix\" does not exist; give a directory")));
  EXPECT_THAT(LoadHuggingFaceConfig(path + "/config.json").status().message(),
              HasSubstr("config.json\" is a file; give the directory"));
}

TEST(HuggingFaceConfigTest, NamesAdaptersWithoutAModel) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/adapter");
  std::filesystem::create_directory(directory);
  const std::string path = directory + "/config.json";
  EXPECT_THAT(LoadHuggingFaceConfig(path),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot open")));
  std::ofstream(directory + "/adapter_config.json") << "{}";
  EXPECT_THAT(
      LoadHuggingFaceConfig(path),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("merge_and_unload()")));
}

TEST(HuggingFaceConfigFuzzTest, DamagedConfigsAreRejectedOrRoundTrip) {
  TextMutator mutator(
      {kSmolLm2, kVersion5, kLlama31, kQwen2, kQwen3, kMistral, kGemma,
       *FormatHuggingFaceConfig({.model = *PresetConfig("llama-7b")})},
      {"null", "true", "-1", "1e309", "[[[[", "\"rope_scaling\":{},", "0.5",
       "9223372036854775808", "\"head_dim\":6,", "\"x\":1,"},
      6);
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto config = ParseHuggingFaceConfig(mutator.Next());
    if (!config.ok()) {
      ASSERT_TRUE(absl::IsInvalidArgument(config.status()) ||
                  absl::IsUnimplemented(config.status()));
      ASSERT_FALSE(config.status().message().empty());
      ASSERT_LT(config.status().message().size(), 1000u);
      continue;
    }
    ++valid;
    TESSERA_ASSERT_OK(config->model.Validate());
    ASSERT_GT(config->model.ParameterCount(), 0);
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                                 FormatHuggingFaceConfig(*config));
    ASSERT_THAT(ParseHuggingFaceConfig(json), IsOkAndHolds(*config));
  }
  EXPECT_GT(valid, 300);
}

}  // namespace
}  // namespace tessera::model_files
