#include "tools/model_files/model_config.h"

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/model_files/presets.h"

namespace tessera::model_files {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModelConfig kSmall = {.vocabulary = 11,
                            .hidden = 12,
                            .intermediate = 20,
                            .layers = 2,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_size = 6};

TEST(PresetsTest, ParameterCountsMatchPublished) {
  // TinyLlama 1.1B, OpenLLaMA 3B, Llama 2 7B, 13B and 70B, Llama 3 8B and 3.2
  // 1B, the SmolLM2 models, Qwen 2.5 and 3, Gemma, Mistral, Mixtral and
  // gpt-oss, from their model cards and checkpoints.
  const std::vector<std::pair<std::string_view, int64_t>> expected = {
      {"llama-1m", 1'051'776},
      {"moe-3m", 3'415'168},
      {"llama-10m", 10'168'576},
      {"llama-50m", 50'618'880},
      {"llama-125m", 124'668'672},
      {"smollm2-135m", 134'515'008},
      {"smollm2-360m", 361'821'120},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen3-0.6b", 596'049'920},
      {"llama-1b", 1'100'048'384},
      {"llama3.2-1b", 1'235'814'400},
      {"smollm2-1.7b", 1'711'376'384},
      {"gemma-2b", 2'506'172'416},
      {"llama-3b", 3'426'473'600},
      {"llama-7b", 6'738'415'616},
      {"mistral-7b", 7'248'023'552},
      {"llama-8b", 8'030'261'248},
      {"llama-13b", 13'015'864'320},
      {"deepseek-v2-lite", 15'706'484'224},
      {"gpt-oss-20b", 20'914'757'184},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"mixtral-8x7b", 46'702'792'704},
      {"llama-70b", 68'976'648'192},
      {"deepseek-v3", 671'026'419'200},
  };
  std::vector<std::string_view> names;
  int64_t last = 0;
  for (const auto& [name, count] : expected) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ModelConfig config, PresetConfig(name));
    TESSERA_EXPECT_OK(config.Validate());
    EXPECT_EQ(config.ParameterCount(), count) << name;
    EXPECT_EQ(config.ParameterBytes(DType::kBF16), 2 * count);
    EXPECT_GT(count, last);
    last = count;
    names.push_back(name);
  }
  EXPECT_EQ(PresetNames(), names);
}

TEST(PresetsTest, RejectsOtherNames) {
  EXPECT_THAT(PresetConfig("gpt"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"gpt\""), HasSubstr("llama-1m,"),
                             HasSubstr("llama-70b"))));
}

TEST(ModelConfigTest, CountsEveryMatrixOnce) {
  const int64_t layer = 24 * 12 + 2 * 12 * 12 + 12 * 24 + 3 * 20 * 12 + 2 * 12;
  EXPECT_EQ(kSmall.LayerParameterCount(0), layer);
  EXPECT_EQ(kSmall.ParameterCount(), 2 * layer + 2 * 11 * 12 + 12);
  ModelConfig biased = kSmall;
  biased.qkv_bias = biased.output_bias = true;
  EXPECT_EQ(biased.LayerParameterCount(0), layer + 24 + 12 + 12 + 12);
  EXPECT_EQ(biased.ForwardFlopsPerToken(7), kSmall.ForwardFlopsPerToken(7));
  ModelConfig normed = kSmall;
  normed.architecture = Architecture::kQwen3;
  EXPECT_EQ(normed.LayerParameterCount(0), layer + 2 * 6);
  ModelConfig tied = kSmall;
  tied.tied_embeddings = true;
  EXPECT_EQ(tied.ParameterCount(), 2 * layer + 11 * 12 + 12);
}

TEST(ModelConfigTest, FlopsMatchLoops) {
  for (const int64_t window : {0, 1, 5, 100}) {
    ModelConfig config = kSmall;
    config.tied_embeddings = window == 0;
    config.window = window;
    config.window_begin = window == 5 ? 1 : 0;
    for (const int64_t sequence : {1, 2, 7, 64}) {
      // Counts multiplications and additions of every product per token.
      int64_t flops = 0;
      for (int64_t token = 0; token < sequence; ++token) {
        for (int64_t layer = 0; layer < 2; ++layer) {
          flops += 2 * 12 * (24 + 12 + 12) + 2 * 24 * 12;  // q, k, v; output
          flops += 3 * 2 * 12 * 20;
          const int64_t seen = config.WindowOf(layer);
          const int64_t keys =
              seen == 0 ? token + 1 : std::min(token + 1, seen);
          flops += 4 * keys * (2 * 6) * 2;  // heads * (scores and values)
        }
        flops += 2 * 12 * 11;
      }
      EXPECT_DOUBLE_EQ(
          config.ForwardFlopsPerToken(sequence) * static_cast<double>(sequence),
          static_cast<double>(flops));
      EXPECT_DOUBLE_EQ(config.TrainingFlopsPerToken(sequence),
                       3 * config.ForwardFlopsPerToken(sequence));
    }
  }
  // The rule of six flops per parameter and token.
  const ModelConfig large = *PresetConfig("llama-7b");
  EXPECT_NEAR(large.TrainingFlopsPerToken(1) /
                  static_cast<double>(6 * large.ParameterCount()),
              1, 0.03);
}

template <typename Change>
void ExpectRefused(Change change, std::string_view name,
                   std::string_view words) {
  ModelConfig config = kSmall;
  change(config);
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(std::string(name)),
                             HasSubstr(std::string(words)))));
}

TEST(ModelConfigTest, ErrorsNameFieldAndAllowedRange) {
  TESSERA_EXPECT_OK(kSmall.Validate());
  const std::pair<int64_t ModelConfig::*, std::string_view> fields[] = {
      {&ModelConfig::vocabulary, "vocab_size"},
      {&ModelConfig::hidden, "hidden_size"},
      {&ModelConfig::intermediate, "intermediate_size"},
      {&ModelConfig::layers, "num_hidden_layers"},
      {&ModelConfig::heads, "num_attention_heads"},
      {&ModelConfig::kv_heads, "num_key_value_heads"},
      {&ModelConfig::head_size, "head_dim"},
      {&ModelConfig::max_positions, "max_position_embeddings"}};
  for (const auto& [member, name] : fields) {
    const auto field = member;  // clang 14 cannot capture structured bindings.
    for (const int64_t value :
         {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      ExpectRefused([&](ModelConfig& config) { config.*field = value; }, name,
                    absl::StrCat("is ", value, "; it must be from 1 to "));
    }
  }
  ExpectRefused([](auto& c) { c.kv_heads = 3; }, "num_key_value_heads",
                "is 3; it must divide heads (num_attention_heads), 4");
  ExpectRefused([](auto& c) { c.head_size = 5; }, "head_dim",
                "is 5; it must be even");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {0.0, -1.0, kNan, 1.0 / 0.0}) {
    ExpectRefused([&](auto& c) { c.rotary.base = value; }, "rope_theta",
                  "it must be above 0 to");
    ExpectRefused([&](auto& c) { c.norm_epsilon = value; }, "rms_norm_eps",
                  "it must be above 0 to 1");
  }
  ExpectRefused(
      [](auto& c) {
        c.rotary.scaling = tensor_parallel::RotaryScaling::kLinear;
        c.rotary.factor = 0;
      },
      "rope_scaling: factor", "is 0; it should be positive");
  using tensor_parallel::RotaryScaling;
  ExpectRefused(
      [](auto& c) {
        c.rotary = {.scaling = RotaryScaling::kLlama3, .low_turns = 4};
      },
      "high_turns is 4", "it should be above low_turns, 4");
  ExpectRefused(
      [](auto& c) {
        c.rotary = {.scaling = RotaryScaling::kYarn, .original_positions = 0};
      },
      "original_positions is 0", "it should be positive");
  ExpectRefused(
      [](auto& c) {
        c.rotary = {.scaling = RotaryScaling::kLongRope,
                    .short_factors = {1, 2, 3},
                    .long_factors = {1, 2}};
      },
      "the number of long_factors is 2", "it should be 3");
  ExpectRefused([](auto& c) { c.rotary.partial = 0.67; },
                "partial_rotary_factor is 0.67", "Llama turns whole heads");
  ExpectRefused([](auto& c) { c.no_rope_layers = {1}; }, "no_rope_layers has 1",
                "it must ascend from 0, below 0");
  ExpectRefused([](auto& c) { c.final_cap = 30; }, "final_logit_softcapping",
                "is 30; it must be from 0 to 0");
  ExpectRefused([](auto& c) { c.qkv_bias = true; },
                "qkv_bias is true and output_bias false", "both");
  ExpectRefused([](auto& c) { c.architecture = Architecture::kQwen2; },
                "qkv_bias is false", "Qwen2 has qkv_bias alone");
  ExpectRefused(
      [](auto& c) {
        c.architecture = Architecture::kMistral;
        c.qkv_bias = c.output_bias = true;
      },
      "output_bias true", "Mistral has none");
  const auto qwen3 = [](auto& c) { c.architecture = Architecture::kQwen3; };
  ExpectRefused([](auto& c) { c.window = 8; }, "window (sliding_window) is 8",
                "Llama has none");
  ExpectRefused(
      [&](auto& c) {
        qwen3(c);
        c.window = -1;
      },
      "window (sliding_window) is -1", "from 0 to 2147483647");
  for (const int64_t begin : {-1, 2}) {
    ExpectRefused(
        [&](auto& c) {
          qwen3(c);
          c.window = 8;
          c.window_begin = begin;
        },
        "window_begin (max_window_layers)", "from 0 to 1");
  }
  ExpectRefused(
      [](auto& c) {
        c.architecture = Architecture::kMistral;
        c.window = 8;
        c.window_begin = 1;
      },
      "window_begin (max_window_layers) is 1", "from 0 to 0");
  ExpectRefused([](auto& c) { c.initializer_range = -0.1; },
                "initializer_range", "from 0 to 100");
}

TEST(ModelConfigTest, TheLargestModelsCountWithoutOverflow) {
  ModelConfig config = {.vocabulary = (int64_t{1} << 31) - 1,
                        .hidden = int64_t{1} << 20,
                        .intermediate = int64_t{1} << 22,
                        .layers = 4096,
                        .heads = int64_t{1} << 19,
                        .kv_heads = int64_t{1} << 19,
                        .head_size = 2};
  TESSERA_ASSERT_OK(config.Validate());
  EXPECT_NEAR(static_cast<double>(config.ParameterCount()),
              4096 * 1048576.0 * (4 * 1048576.0 + 3 * 4194304.0), 1e16);
  EXPECT_GT(config.ParameterBytes(DType::kF64), config.ParameterCount());
}

}  // namespace
}  // namespace tessera::model_files
