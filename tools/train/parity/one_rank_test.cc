// Compares one rank with ReferenceLlama and with finite differences of its own
// loss.
#include "tools/train/parity/testing/one_rank.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/reference_llama.h"

namespace tessera::train {
namespace {

using tensor_parallel::Recompute;

struct Shape {
  std::string name;
  model_files::ModelConfig model;
  int64_t sequences, length;
  std::optional<int64_t> document_end = {};

  friend std::ostream& operator<<(std::ostream& os, const Shape& shape) {
    return os << shape.name;
  }
};

class OneRankTest : public ::testing::TestWithParam<Shape> {
 protected:
  OneRankTest() : weights_(ReferenceZeros(GetParam().model)) {
    FillByFormula(weights_);
    tokens_ = TokensByFormula(3, GetParam().sequences * (GetParam().length + 1),
                              GetParam().model.vocabulary);
  }

  RunOptions Options(DType dtype) const {
    return {.model = GetParam().model,
            .dtype = dtype,
            .micro_batch = GetParam().sequences,
            .length = GetParam().length,
            .document_end = GetParam().document_end};
  }

  ReferencePass Reference(double label_smoothing = 0, double z_loss = 0,
                          double router_z_loss = 0,
                          std::vector<bool> masked = {}) const {
    return RunReference(
        GetParam().model, weights_,
        {tokens_, static_cast<size_t>(GetParam().sequences),
         static_cast<size_t>(GetParam().length), label_smoothing, z_loss,
         GetParam().document_end, GetParam().model.mixture.balance,
         router_z_loss, std::move(masked)});
  }
  bool is_mixture() const { return GetParam().model.mixture.experts > 0; }

  // Errors of each gradient are relative to the tensor's largest element, or to
  // a thousandth of the largest of all: some are zero except for rounding.
  void ExpectGradients(ReferenceWeights actual, ReferenceWeights expected,
                       double tolerance) {
    const auto of_actual = TensorsOf(actual), of_expected = TensorsOf(expected);
    ASSERT_EQ(of_actual.size(), of_expected.size());
    double largest = 0;
    for (const NamedWeights& tensor : of_expected) {
      for (const double value : *tensor.values) {
        largest = std::max(largest, std::abs(value));
      }
    }
    for (size_t t = 0; t < of_actual.size(); ++t) {
      EXPECT_LT(RelativeDifference(*of_actual[t].values, *of_expected[t].values,
                                   largest / 1000),
                tolerance)
          << of_actual[t].name;
    }
  }

  ReferenceWeights weights_;
  std::vector<int64_t> tokens_;
};

TEST_P(OneRankTest, LossAndGradientsMatchReference) {
  const ReferencePass expected = Reference();
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    for (const bool split : {false, true}) {
      SCOPED_TRACE(::testing::Message() << recompute << " split " << split);
      RunOptions options = Options(DType::kF64);
      options.recompute = recompute;
      TESSERA_ASSERT_OK_AND_ASSIGN(auto rank,
                                   OneRank::Create(options, weights_));
      TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, rank->Forward(tokens_));
      EXPECT_NEAR(loss, expected.loss, 1e-12 * expected.loss);
      ASSERT_THAT(rank->Backward(split), IsOk());
      TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
      ExpectGradients(gradients, expected.gradients, 1e-10);
    }
  }
}

// Several patterns of masks by token index, including a mask of all tokens,
// with the terms of losses.
TEST_P(OneRankTest, MaskedTargetsHaveNeitherLossNorGradient) {
  const auto count =
      static_cast<size_t>(GetParam().sequences * GetParam().length);
  for (const size_t period : {2, 3, 5, 1}) {
    std::vector<bool> masked(count);
    for (size_t t = 0; t < count; ++t) masked[t] = t % period == 0;
    for (const auto& [smoothing, z_loss] :
         {std::pair(0.0, 0.0), std::pair(0.1, 0.01)}) {
      SCOPED_TRACE(::testing::Message()
                   << "period " << period << ", z-loss " << z_loss);
      const ReferencePass expected = Reference(smoothing, z_loss, 0, masked);
      RunOptions options = Options(DType::kF64);
      options.label_smoothing = smoothing;
      options.z_loss = z_loss;
      TESSERA_ASSERT_OK_AND_ASSIGN(auto rank,
                                   OneRank::Create(options, weights_));
      rank->SetMasked(masked);
      TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, rank->Forward(tokens_));
      EXPECT_NEAR(loss, expected.loss, 1e-12 * expected.loss);
      ASSERT_THAT(rank->Backward(), IsOk());
      TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
      ExpectGradients(gradients, expected.gradients, 1e-10);
    }
  }
}

TEST_P(OneRankTest, TheZLossOfRoutersIsInTheGradients) {
  if (!is_mixture()) GTEST_SKIP() << "it has no router";
  const ReferencePass expected = Reference(0, 0, 0.05);
  RunOptions options = Options(DType::kF64);
  options.router_z_loss = 0.05;
  TESSERA_ASSERT_OK_AND_ASSIGN(auto rank, OneRank::Create(options, weights_));
  TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, rank->Forward(tokens_));
  EXPECT_NEAR(loss, expected.loss, 1e-12 * expected.loss);
  ASSERT_THAT(rank->Backward(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
  ExpectGradients(gradients, expected.gradients, 1e-10);
}

TEST_P(OneRankTest, LossTermsAreInTheGradientsAndNotInTheLoss) {
  const double plain = Reference().loss;
  for (const auto& [smoothing, z_loss] :
       {std::pair(0.2, 0.0), std::pair(0.0, 0.05), std::pair(0.1, 0.01)}) {
    const ReferencePass expected = Reference(smoothing, z_loss);
    RunOptions options = Options(DType::kF64);
    options.label_smoothing = smoothing;
    options.z_loss = z_loss;
    TESSERA_ASSERT_OK_AND_ASSIGN(auto rank, OneRank::Create(options, weights_));
    TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, rank->Forward(tokens_));
    EXPECT_NEAR(loss, plain, 1e-12 * plain);
    ASSERT_THAT(rank->Backward(), IsOk());
    TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
    ExpectGradients(gradients, expected.gradients, 1e-10);
  }
}

// Losses determine the logits of a token up to a common constant: changing its
// target changes the loss by the difference of two logits. Returns the
// differences between the first word's logit and the others, for the last token
// of a sequence.
std::vector<double> LogitsOfLast(OneRank& rank, std::vector<int64_t> tokens,
                                 const Shape& shape) {
  const auto length = static_cast<double>(tokens.size() - 1);
  std::vector<double> logits;
  for (tokens.back() = 0; tokens.back() < shape.model.vocabulary;
       ++tokens.back()) {
    const double loss = rank.Loss(tokens).value_or(std::nan(""));
    logits.push_back(-length * loss);
  }
  for (size_t word = logits.size(); word-- > 0;) logits[word] -= logits[0];
  return logits;
}

TEST_P(OneRankTest, LogitsMatchReferenceAtEveryToken) {
  const Shape& shape = GetParam();
  const auto words = static_cast<size_t>(shape.model.vocabulary);
  const std::vector<double> logits = Reference().logits;
  for (int64_t length = 1; length <= shape.length; ++length) {
    RunOptions options = Options(DType::kF64);
    options.micro_batch = 1;
    options.length = length;
    TESSERA_ASSERT_OK_AND_ASSIGN(auto rank, OneRank::Create(options, weights_));
    for (int64_t s = 0; s < shape.sequences; ++s) {
      const auto token = static_cast<size_t>(s * shape.length + length - 1);
      std::vector<double> expected(logits.begin() + token * words,
                                   logits.begin() + (token + 1) * words);
      for (size_t word = words; word-- > 0;) expected[word] -= expected[0];
      const auto begin = tokens_.begin() + s * (shape.length + 1);
      EXPECT_LT(RelativeDifference(
                    LogitsOfLast(*rank, {begin, begin + length + 1}, shape),
                    expected),
                1e-10)
          << "sequence " << s << ", token " << length - 1;
    }
  }
}

// Uses only the library's own forward: independent of every reference.
TEST_P(OneRankTest, GradientsMatchFiniteDifferences) {
  RunOptions options = Options(DType::kF64);
  options.balance = 0;  // It is not in the loss.
  TESSERA_ASSERT_OK_AND_ASSIGN(auto rank, OneRank::Create(options, weights_));
  ASSERT_THAT(rank->Forward(tokens_), IsOk());
  ASSERT_THAT(rank->Backward(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
  std::vector<double> all, all_expected;
  const auto actual = TensorsOf(gradients), values = TensorsOf(rank->weights());
  for (size_t t = 0; t < actual.size(); ++t) {
    const std::vector<double> expected = FiniteDifferences(
        [&] {
          if (!rank->SetWeights().ok()) return std::nan("");
          return rank->Loss(tokens_).value_or(std::nan(""));
        },
        *values[t].values);
    EXPECT_LT(RelativeDifference(*actual[t].values, expected, 1e-6), 1e-6)
        << actual[t].name;
    all.insert(all.end(), actual[t].values->begin(), actual[t].values->end());
    all_expected.insert(all_expected.end(), expected.begin(), expected.end());
  }
  EXPECT_LT(RelativeDifference(all, all_expected), 1e-8);
}

TEST_P(OneRankTest, InF32IsWithinRounding) {
  const ReferencePass expected = Reference();
  TESSERA_ASSERT_OK_AND_ASSIGN(auto rank,
                               OneRank::Create(Options(DType::kF32), weights_));
  TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, rank->Forward(tokens_));
  EXPECT_NEAR(loss, expected.loss, 1e-6 * expected.loss);
  ASSERT_THAT(rank->Backward(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
  ExpectGradients(gradients, expected.gradients, 1e-5);
}

TEST_P(OneRankTest, InBf16IsWithinItsRounding) {
  if (is_mixture()) GTEST_SKIP() << "rounding chooses other experts";
  const ReferencePass expected = Reference();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto rank, OneRank::Create(Options(DType::kBF16), weights_));
  TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, rank->Forward(tokens_));
  EXPECT_NEAR(loss, expected.loss, 2e-2 * expected.loss);
  ASSERT_THAT(rank->Backward(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
  ExpectGradients(gradients, expected.gradients, 0.1);
}

TEST_P(OneRankTest, GradientsAccumulateAndScale) {
  std::vector<int64_t> other = tokens_;
  for (int64_t& token : other) {
    token = (token + 1) % GetParam().model.vocabulary;
  }
  ReferencePass first = Reference();
  tokens_.swap(other);
  ReferencePass second = Reference();
  tokens_.swap(other);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto rank,
                               OneRank::Create(Options(DType::kF64), weights_));
  rank->SetLossFactor(-3);
  for (const auto& tokens : {tokens_, other}) {
    ASSERT_THAT(rank->Forward(tokens), IsOk());
    ASSERT_THAT(rank->Backward(), IsOk());
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(auto gradients, rank->Gradients());
  const auto sums = TensorsOf(first.gradients),
             parts = TensorsOf(second.gradients);
  for (size_t t = 0; t < sums.size(); ++t) {
    for (size_t i = 0; i < sums[t].values->size(); ++i) {
      double& sum = (*sums[t].values)[i];
      sum = -3 * (sum + (*parts[t].values)[i]);
    }
  }
  ExpectGradients(gradients, first.gradients, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, OneRankTest,
    ::testing::Values(
        Shape{"GroupedHeadsWiderThanHidden",
              {.vocabulary = 11,
               .hidden = 6,
               .intermediate = 7,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 4},
              2,
              7},
        Shape{"TiedOneKvHeadNarrowerThanHidden",
              {.vocabulary = 13,
               .hidden = 9,
               .intermediate = 5,
               .layers = 2,
               .heads = 6,
               .kv_heads = 1,
               .head_size = 2,
               .rotary = {.base = 100},
               .norm_epsilon = 1e-3,
               .tied_embeddings = true},
              1,
              9},
        Shape{"AsManyKvHeads",
              {.vocabulary = 5,
               .hidden = 12,
               .intermediate = 11,
               .layers = 1,
               .heads = 3,
               .kv_heads = 3,
               .head_size = 4,
               .rotary = {.base = 500000}},
              3,
              4},
        Shape{"Llama31WithBiases",
              {.vocabulary = 7,
               .hidden = 10,
               .intermediate = 6,
               .layers = 2,
               .heads = 2,
               .kv_heads = 1,
               .head_size = 12,
               .rotary = {.base = 500,
                          .scaling = tensor_parallel::RotaryScaling::kLlama3,
                          .factor = 8,
                          .original_positions = 64},
               .qkv_bias = true,
               .output_bias = true},
              1,
              19},
        Shape{"Qwen2",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 6,
               .tied_embeddings = true,
               .architecture = model_files::Architecture::kQwen2,
               .qkv_bias = true},
              2,
              6},
        Shape{"MistralWithAWindow",
              {.vocabulary = 11,
               .hidden = 10,
               .intermediate = 9,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 4,
               .architecture = model_files::Architecture::kMistral,
               .window = 3},
              2,
              9},
        Shape{"Qwen3WithAWindowInTheSecondLayer",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 6,
               .norm_epsilon = 1e-3,
               .architecture = model_files::Architecture::kQwen3,
               .qkv_bias = true,
               .output_bias = true,
               .window = 2,
               .window_begin = 1},
              2,
              6},
        Shape{"Gemma",
              {.vocabulary = 11,
               .hidden = 6,
               .intermediate = 7,
               .layers = 2,
               .heads = 2,
               .kv_heads = 1,
               .head_size = 6,
               .tied_embeddings = true,
               .architecture = model_files::Architecture::kGemma},
              2,
              6},
        Shape{"Gemma2",
              {.vocabulary = 11,
               .hidden = 6,
               .intermediate = 7,
               .layers = 3,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 4,
               .norm_epsilon = 0.3,
               .tied_embeddings = true,
               .architecture = model_files::Architecture::kGemma2,
               .window = 3,
               .full_layers = {1},
               .score_scalar = 3,
               .attention_cap = 1,
               .final_cap = 2},
              2,
              7},
        Shape{"Gemma3",
              {.vocabulary = 7,
               .hidden = 6,
               .intermediate = 5,
               .layers = 2,
               .heads = 2,
               .kv_heads = 1,
               .head_size = 6,
               .rotary = {.base = 1000,
                          .scaling = tensor_parallel::RotaryScaling::kLinear,
                          .factor = 8},
               .norm_epsilon = 0.3,
               .tied_embeddings = true,
               .architecture = model_files::Architecture::kGemma3,
               .window = 3,
               .full_layers = {1},
               .local_rotary = tensor_parallel::RotaryFrequencies{.base = 50},
               .score_scalar = 4},
              2,
              6},
        Shape{"GptOss",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 3,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 4,
               .rotary = {.base = 50,
                          .scaling = tensor_parallel::RotaryScaling::kYarn,
                          .factor = 4,
                          .low_turns = 0.5,
                          .high_turns = 6,
                          .original_positions = 64,
                          .attention_factor = 1.1,
                          .truncate = false},
               .architecture = model_files::Architecture::kGptOss,
               .qkv_bias = true,
               .output_bias = true,
               .window = 3,
               .mixture = {.experts = 4,
                           .per_token = 2,
                           .intermediate = 5,
                           .balance = 0.1},
               .full_layers = {1}},
              2,
              7},
        Shape{"Phi3",
              {.vocabulary = 9,
               .hidden = 8,
               .intermediate = 5,
               .layers = 2,
               .heads = 2,
               .kv_heads = 1,
               .head_size = 8,
               .rotary = {.base = 100,
                          .scaling = tensor_parallel::RotaryScaling::kLongRope,
                          .original_positions = 32,
                          .partial = 0.75,
                          .attention_factor = 1.2,
                          .short_factors = {1, 1.5, 2},
                          .long_factors = {2, 3, 5}},
               .architecture = model_files::Architecture::kPhi3},
              2,
              6},
        Shape{"SmolLm3",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 3,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 8,
               .rotary = {.base = 50,
                          .scaling = tensor_parallel::RotaryScaling::kYarn,
                          .factor = 4,
                          .low_turns = 0.5,
                          .high_turns = 6,
                          .original_positions = 64,
                          .attention_factor = 1.1},
               .tied_embeddings = true,
               .architecture = model_files::Architecture::kSmolLm3,
               .no_rope_layers = {1}},
              2,
              6},
        Shape{"Olmo2",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 4,
               .norm_epsilon = 1e-3,
               .architecture = model_files::Architecture::kOlmo2},
              2,
              6},
        Shape{"Mixtral",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 4,
               .architecture = model_files::Architecture::kMixtral,
               .mixture = {.experts = 4,
                           .per_token = 2,
                           .intermediate = 5,
                           .balance = 0.1}},
              2,
              6},
        Shape{"Qwen3MoeNotNormalised",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 6,
               .norm_epsilon = 1e-3,
               .architecture = model_files::Architecture::kQwen3Moe,
               .mixture = {.experts = 5,
                           .per_token = 3,
                           .intermediate = 3,
                           .normalise = false,
                           .balance = 0.2}},
              1,
              7},
        Shape{"Dots1WithASharedExpertAndADenseLayer",
              {.vocabulary = 9,
               .hidden = 6,
               .intermediate = 5,
               .layers = 3,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 6,
               .norm_epsilon = 1e-3,
               .architecture = model_files::Architecture::kDots1,
               .mixture = {.experts = 4,
                           .per_token = 2,
                           .intermediate = 3,
                           .shared_intermediate = 6,
                           .dense_layers = 1,
                           .scale = 2.5,
                           .balance = 0.1}},
              2,
              5},
        Shape{"DeepSeekV2",
              {.vocabulary = 9,
               .hidden = 10,
               .intermediate = 5,
               .layers = 2,
               .heads = 3,
               .kv_heads = 3,
               .head_size = 7,
               .rotary = {.base = 100},
               .norm_epsilon = 1e-3,
               .architecture = model_files::Architecture::kDeepSeekV2,
               .mixture = {.experts = 6,
                           .per_token = 2,
                           .intermediate = 3,
                           .shared_intermediate = 6,
                           .dense_layers = 1,
                           .normalise = false,
                           .scale = 2.5,
                           .balance = 0.1,
                           .groups = 3,
                           .groups_per_token = 2},
               .latent = {.kv_rank = 8, .nope = 3, .rope = 4, .value = 5}},
              2,
              6},
        Shape{"DeepSeekV3",
              {.vocabulary = 7,
               .hidden = 8,
               .intermediate = 5,
               .layers = 2,
               .heads = 4,
               .kv_heads = 4,
               .head_size = 6,
               .rotary = {.base = 50,
                          .scaling = tensor_parallel::RotaryScaling::kYarn,
                          .factor = 4,
                          .low_turns = 0.5,
                          .high_turns = 6,
                          .original_positions = 64,
                          .attention_factor = 0.9},
               .norm_epsilon = 1e-3,
               .architecture = model_files::Architecture::kDeepSeekV3,
               .mixture = {.experts = 8,
                           .per_token = 3,
                           .intermediate = 3,
                           .shared_intermediate = 3,
                           .scale = 1.5,
                           .groups = 4,
                           .groups_per_token = 2},
               .latent = {.query_rank = 5,
                          .kv_rank = 4,
                          .nope = 2,
                          .rope = 4,
                          .value = 6,
                          .interleaved = false,
                          .score_mscale = 0.9}},
              2,
              7,
              1},
        Shape{"DenseLatentAttention",
              {.vocabulary = 7,
               .hidden = 9,
               .intermediate = 5,
               .layers = 1,
               .heads = 2,
               .kv_heads = 2,
               .head_size = 6,
               .architecture = model_files::Architecture::kDeepSeekV3,
               .mixture = {.experts = 2,
                           .per_token = 1,
                           .intermediate = 2,
                           .dense_layers = 1},
               .latent = {.query_rank = 3,
                          .kv_rank = 5,
                          .nope = 2,
                          .rope = 4,
                          .value = 3}},
              2,
              8},
        Shape{"DocumentsAndAWindowInTheSecondLayer",
              {.vocabulary = 5,
               .hidden = 8,
               .intermediate = 7,
               .layers = 2,
               .heads = 4,
               .kv_heads = 2,
               .head_size = 4,
               .architecture = model_files::Architecture::kQwen2,
               .qkv_bias = true,
               .window = 3,
               .window_begin = 1},
              3,
              13,
              2},
        Shape{"OneTokenOfTwoWords",
              {.vocabulary = 2,
               .hidden = 2,
               .intermediate = 1,
               .layers = 1,
               .heads = 1,
               .kv_heads = 1,
               .head_size = 2,
               .tied_embeddings = true},
              1,
              1}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::train
