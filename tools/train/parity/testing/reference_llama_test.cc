// Tests the reference: its gradients against finite differences; its logits,
// loss and gradients against those of transformers for the same weights.
#include "tools/train/parity/testing/reference_llama.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json/json.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {
namespace {

using ::testing::Each;
using ::testing::SizeIs;

model_files::ModelConfig ConfigFrom(nlohmann::json json) {
  if (!json.contains("model_type")) json["model_type"] = "llama";
  if (!json.contains("max_position_embeddings")) {
    json["max_position_embeddings"] = 512;
  }
  const auto config = model_files::ParseHuggingFaceConfig(json.dump());
  EXPECT_THAT(config, IsOk());
  return config.ok() ? config->model : model_files::ModelConfig();
}

nlohmann::json Fixture() {
  const absl::StatusOr<std::string> text = ReadFile(
      "tools/train/parity/testing/testdata/llama_logits.json", 1 << 20);
  EXPECT_THAT(text, IsOk());
  if (!text.ok()) return {};
  const auto json = ParseJson(*text, {.max_bytes = 1 << 20});
  EXPECT_THAT(json, IsOk());
  return json.ok() ? *json : nlohmann::json();
}

// The change of the loss when element j of a tensor moves by cos(j + 1).
std::vector<double> SlopesOf(ReferenceWeights& gradients) {
  std::vector<double> slopes;
  for (const NamedWeights& tensor : TensorsOf(gradients)) {
    double& slope = slopes.emplace_back(0);
    double element = 0;
    for (const double g : *tensor.values) slope += g * std::cos(++element);
  }
  return slopes;
}

TEST(ReferenceLlamaTest, MatchesTransformers) {
  const nlohmann::json cases = Fixture();
  ASSERT_THAT(cases, SizeIs(29));
  for (const nlohmann::json& expected : cases) {
    const model_files::ModelConfig model = ConfigFrom(expected.at("model"));
    SCOPED_TRACE(expected.at("model").dump());
    ReferenceWeights weights = ReferenceZeros(model);
    FillByFormula(weights);
    const std::vector<int64_t> tokens = expected.at("tokens");
    EXPECT_EQ(tokens, TokensByFormula(0, static_cast<int64_t>(tokens.size()),
                                      model.vocabulary));
    ReferencePass pass =
        RunReference(model, weights,
                     {tokens, expected.at("sequences"), expected.at("length")});
    EXPECT_NEAR(pass.loss, expected.at("loss").get<double>(), 1e-12);
    const std::vector<double> logits = expected.at("logits");
    EXPECT_LT(RelativeDifference(pass.logits, logits), 1e-12);
    const std::vector<double> slopes = expected.at("slopes");
    EXPECT_LT(RelativeDifference(SlopesOf(pass.gradients), slopes), 1e-11);
  }
}

struct Sizes {
  model_files::ModelConfig model;
  size_t sequences, length;
};

const Sizes kSmallModels[] = {
    {{.vocabulary = 5,
      .hidden = 4,
      .intermediate = 3,
      .layers = 2,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 6,
      .rotary = {.base = 100,
                 .scaling = tensor_parallel::RotaryScaling::kLlama3,
                 .factor = 8,
                 .original_positions = 32},
      .architecture = model_files::Architecture::kQwen3,
      .qkv_bias = true,
      .output_bias = true,
      .window = 3,
      .window_begin = 1},
     1,
     5},
    {{.vocabulary = 7,
      .hidden = 5,
      .intermediate = 6,
      .layers = 2,
      .heads = 4,
      .kv_heads = 2,
      .head_size = 4,
      .rotary = {.base = 50}},
     2,
     4},
    {{.vocabulary = 5,
      .hidden = 3,
      .intermediate = 1,
      .layers = 1,
      .heads = 3,
      .kv_heads = 1,
      .head_size = 2,
      .norm_epsilon = 1e-2,
      .tied_embeddings = true},
     1,
     6},
    {{.vocabulary = 2,
      .hidden = 1,
      .intermediate = 2,
      .layers = 3,
      .heads = 1,
      .kv_heads = 1,
      .head_size = 2,
      .norm_epsilon = 0.5},
     3,
     1},
    {{.vocabulary = 5,
      .hidden = 4,
      .intermediate = 3,
      .layers = 2,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 2,
      .mixture = {.experts = 4, .per_token = 2, .intermediate = 2}},
     2,
     3},
    {{.vocabulary = 5,
      .hidden = 4,
      .intermediate = 3,
      .layers = 2,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 2,
      .architecture = model_files::Architecture::kDots1,
      .mixture = {.experts = 5,
                  .per_token = 3,
                  .intermediate = 2,
                  .shared_intermediate = 3,
                  .dense_layers = 1,
                  .normalise = false,
                  .scale = 1.5}},
     1,
     4},
    {{.vocabulary = 5,
      .hidden = 4,
      .intermediate = 3,
      .layers = 2,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 6,
      .rotary = {.base = 50, .partial = 0.67, .attention_factor = 1.3},
      .architecture = model_files::Architecture::kGemma3,
      .window = 2,
      .full_layers = {1},
      .no_rope_layers = {0},
      .score_scalar = 2,
      .attention_cap = 0.7,
      .final_cap = 1.5},
     2,
     4},
    {{.vocabulary = 5,
      .hidden = 8,
      .intermediate = 12,
      .layers = 1,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 6,
      .rotary = {.base = 50, .partial = 0.67, .attention_factor = 1.3},
      .architecture = model_files::Architecture::kOlmo2},
     1,
     4},
    {{.vocabulary = 5,
      .hidden = 4,
      .intermediate = 3,
      .layers = 2,
      .heads = 2,
      .kv_heads = 1,
      .head_size = 2,
      .architecture = model_files::Architecture::kGptOss,
      .window = 2,
      .mixture = {.experts = 4, .per_token = 2, .intermediate = 3},
      .full_layers = {1}},
     2,
     4},
    {{.vocabulary = 5,
      .hidden = 4,
      .intermediate = 3,
      .layers = 2,
      .heads = 2,
      .kv_heads = 2,
      .head_size = 6,
      .rotary = {.base = 50,
                 .scaling = tensor_parallel::RotaryScaling::kYarn,
                 .factor = 4,
                 .original_positions = 32},
      .architecture = model_files::Architecture::kDeepSeekV3,
      .mixture = {.experts = 6,
                  .per_token = 2,
                  .intermediate = 2,
                  .dense_layers = 1,
                  .groups = 3,
                  .groups_per_token = 2},
      .latent = {.query_rank = 3,
                 .kv_rank = 3,
                 .nope = 2,
                 .rope = 4,
                 .value = 5,
                 .score_mscale = 0.7}},
     1,
     4}};

void ExpectGradientsOfFiniteDifferences(const Sizes& sizes,
                                        double label_smoothing = 0,
                                        double z_loss = 0, bool masks = false) {
  const std::vector<int64_t> tokens = TokensByFormula(
      7, static_cast<int64_t>(sizes.sequences * (sizes.length + 1)),
      sizes.model.vocabulary);
  std::vector<bool> masked(masks ? sizes.sequences * sizes.length : 0);
  for (size_t t = 0; t < masked.size(); ++t) masked[t] = t % 3 != 1;
  // The terms of routers, if the model has any.
  const ReferenceBatch batch = {.tokens = tokens,
                                .sequences = sizes.sequences,
                                .length = sizes.length,
                                .label_smoothing = label_smoothing,
                                .z_loss = z_loss,
                                .balance = 2 * z_loss,
                                .router_z_loss = 3 * z_loss,
                                .masked = masked};
  ReferenceWeights weights = ReferenceZeros(sizes.model);
  FillByFormula(weights);
  ReferencePass pass = RunReference(sizes.model, weights, batch);
  const bool is_plain = label_smoothing == 0 && z_loss == 0;
  EXPECT_EQ(ReferenceLoss(sizes.model, weights, batch) == pass.loss, is_plain);
  const auto tensors = TensorsOf(weights),
             gradients = TensorsOf(pass.gradients);
  ASSERT_EQ(tensors.size(), gradients.size());
  std::vector<double> all, all_expected;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const std::vector<double> expected = FiniteDifferences(
        [&] { return ReferenceLoss(sizes.model, weights, batch); },
        *tensors[t].values);
    const std::vector<double>& actual = *gradients[t].values;
    EXPECT_LT(RelativeDifference(actual, expected, 1e-6), 1e-6)
        << tensors[t].name;
    all.insert(all.end(), actual.begin(), actual.end());
    all_expected.insert(all_expected.end(), expected.begin(), expected.end());
  }
  EXPECT_LT(RelativeDifference(all, all_expected), 1e-8)
      << static_cast<int>(sizes.model.architecture) << " of vocabulary "
      << sizes.model.vocabulary;
}

TEST(ReferenceLlamaTest, GradientsMatchFiniteDifferences) {
  for (const Sizes& sizes : kSmallModels) {
    ExpectGradientsOfFiniteDifferences(sizes);
    ExpectGradientsOfFiniteDifferences(sizes, 0.2);
    ExpectGradientsOfFiniteDifferences(sizes, 0, 0.05);
    ExpectGradientsOfFiniteDifferences(sizes, 0.1, 0.01);
    ExpectGradientsOfFiniteDifferences(sizes, 0, 0, true);
    ExpectGradientsOfFiniteDifferences(sizes, 0.1, 0.01, true);
  }
}

// In an untied table, a word that is neither input nor target has no gradient;
// all tokens have the same weight.
TEST(ReferenceLlamaTest, UnusedWordsHaveNoGradient) {
  const model_files::ModelConfig model = {.vocabulary = 5,
                                          .hidden = 2,
                                          .intermediate = 3,
                                          .layers = 1,
                                          .heads = 1,
                                          .kv_heads = 1,
                                          .head_size = 2};
  ReferenceWeights weights = ReferenceZeros(model);
  FillByFormula(weights);
  const std::vector<int64_t> tokens = {0, 2, 4, 3};
  const ReferencePass pass = RunReference(model, weights, {tokens, 1, 3});
  const std::vector<double>& table = pass.gradients.embedding;
  EXPECT_THAT(std::vector<double>(table.begin() + 2, table.begin() + 4),
              Each(0.0));
  EXPECT_NE(table[4], 0);
}

TEST(FiniteDifferenceTest, DifferentiatesPolynomialsOfDegreeFour) {
  std::vector<double> x = {0.5, -2, 0};
  const auto f = [&] { return x[0] * x[0] * x[0] * x[0] + 3 * x[1] * x[2]; };
  EXPECT_LT(RelativeDifference(FiniteDifferences(f, x), {0.5, 0, -6}), 1e-12);
  EXPECT_EQ(x, std::vector<double>({0.5, -2, 0}));
}

TEST(RelativeDifferenceTest, IsOfTheLargest) {
  EXPECT_EQ(RelativeDifference({1, 2}, {1, 4}), 0.5);
  EXPECT_EQ(RelativeDifference({0, 0}, {0, 0}), 0);
  EXPECT_EQ(RelativeDifference({1}, {0}, 4), 0.25);
  EXPECT_TRUE(std::isinf(RelativeDifference({1}, {1, 2})));
  EXPECT_TRUE(std::isinf(RelativeDifference({1e-30}, {0})));
  EXPECT_TRUE(std::isinf(RelativeDifference({std::nan("")}, {1})));
}

}  // namespace
}  // namespace tessera::train
