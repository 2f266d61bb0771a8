#include "tools/train/sample/llama_decoder.h"

#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/dtype/convert.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/train/testing/random_weights.h"
#include "tools/train/testing/whole_llama.h"

namespace tessera::train {
namespace {

using model_files::LlamaPart;
using ::testing::HasSubstr;

std::vector<int64_t> Tokens(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int64_t>(random() % 264));
  }
  return tokens;
}

double Tolerance(DType dtype) { return dtype == DType::kF64 ? 1e-10 : 1e-5; }

void ExpectNear(const std::vector<double>& actual,
                const std::vector<double>& expected, DType dtype) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], Tolerance(dtype) * largest);
  }
}

class LlamaDecoderTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(LlamaWeights weights,
                                 LlamaWeights::Read(reader_, GetParam()));
    weights_ = std::make_unique<LlamaWeights>(std::move(weights));
  }

  std::unique_ptr<LlamaDecoder> Decoder(int64_t capacity) {
    return *LlamaDecoder::Create(*weights_, ops_, capacity);
  }

  tensor_parallel::CpuOps ops_{{.threads = 1}};
  RandomWeights reader_{SmallModel()};
  std::unique_ptr<LlamaWeights> weights_;
};

TEST_P(LlamaDecoderTest, CacheDoesNotChangeLogits) {
  std::mt19937_64 random(2);
  // More tokens than one pass of the model takes.
  const std::vector<int64_t> tokens = Tokens(300, 1);
  auto decoder = Decoder(300);
  for (size_t read = 0; read < tokens.size();) {
    const size_t count = std::min(tokens.size() - read,
                                  size_t{1} + random() % (read < 8 ? 1 : 60));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::vector<double> logits,
        decoder->Append(std::span(tokens).subspan(read, count)));
    read += count;
    EXPECT_EQ(decoder->length(), static_cast<int64_t>(read));
    // All tokens at once, with a cache of another size.
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<double> whole,
                                 Decoder(static_cast<int64_t>(read) + 5)
                                     ->Append(std::span(tokens).first(read)));
    ExpectNear(logits, whole, GetParam());
  }
}

TEST_P(LlamaDecoderTest, ScoresAreTheLogProbabilitiesOfAppend) {
  const std::vector<int64_t> tokens = Tokens(301, 1);
  const std::span<const int64_t> all = tokens;
  for (const size_t length : {1u, 15u, 16u, 17u, 128u, 129u, 300u}) {
    auto scorer = Decoder(300), decoder = Decoder(300);
    // After two parts, of which one may be empty.
    const size_t first = length / 3;
    std::vector<double> scores;
    for (const auto& [begin, count] :
         {std::pair{size_t{0}, first}, {first, length - first}}) {
      if (count == 0) continue;
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const std::vector<double> some,
          scorer->Score(all.subspan(begin, count),
                        all.subspan(begin + 1, count)));
      scores.insert(scores.end(), some.begin(), some.end());
    }
    EXPECT_EQ(scorer->length(), static_cast<int64_t>(length));
    std::vector<double> expected;
    for (size_t i = 0; i < length; ++i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<double> logits,
                                   decoder->Append(all.subspan(i, 1)));
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit);
      expected.push_back(logits[static_cast<size_t>(tokens[i + 1])] -
                         std::log(sum));
    }
    ExpectNear(scores, expected, GetParam());
  }
}

TEST_P(LlamaDecoderTest, RejectsInvalidTargets) {
  auto decoder = Decoder(4);
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(decoder->Score({{1, 2}}, {{3}}),
              StatusIs(code, HasSubstr("1 targets for 2 tokens")));
  EXPECT_THAT(decoder->Score({{1, 2}}, {{3, 264}}),
              StatusIs(code, HasSubstr("token 264")));
  EXPECT_THAT(decoder->Score({}, {}), StatusIs(code));
  EXPECT_THAT(decoder->Score(Tokens(5, 1), Tokens(5, 1)),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(decoder->length(), 0);
}

TEST_P(LlamaDecoderTest, RestartsAfterClear) {
  auto decoder = Decoder(9);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto first, decoder->Append(Tokens(9, 3)));
  decoder->Clear();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, decoder->Append(Tokens(7, 4)));
  EXPECT_NE(first, other);
  decoder->Clear();
  EXPECT_EQ(decoder->length(), 0);
  EXPECT_THAT(decoder->Append(Tokens(9, 3)), IsOkAndHolds(first));
}

TEST_P(LlamaDecoderTest, RejectsInvalidTokensWithoutAppending) {
  auto decoder = Decoder(4);
  TESSERA_ASSERT_OK(decoder->Append(Tokens(2, 3)));
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(decoder->Append({}), StatusIs(code, HasSubstr("at least 1")));
  EXPECT_THAT(decoder->Append({{3, 264}}),
              StatusIs(code, HasSubstr("token 264; the model's vocabulary has "
                                       "0 to 263")));
  EXPECT_THAT(decoder->Append({{-1}}), StatusIs(code, HasSubstr("token -1")));
  EXPECT_THAT(decoder->Append(Tokens(3, 1)),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("3 tokens after 2; there is room for 4")));
  EXPECT_EQ(decoder->length(), 2);
  TESSERA_EXPECT_OK(decoder->Append(Tokens(2, 3)));
  EXPECT_THAT(LlamaDecoder::Create(*weights_, ops_, 0),
              StatusIs(code, HasSubstr("capacity of 0 tokens")));
}

// The weight that corresponds to a stage's parameter.
std::pair<LlamaPart, int64_t> PartOf(const std::string& name) {
  if (name == "embedding.weight") return {LlamaPart::kEmbedding, -1};
  if (name == "head.norm.weight") return {LlamaPart::kFinalNorm, -1};
  if (name == "head.output.weight") return {LlamaPart::kHead, -1};
  const std::vector<std::string> words = absl::StrSplit(name, '.');
  int64_t layer = 0;
  EXPECT_TRUE(absl::SimpleAtoi(words[1], &layer)) << name;
  for (const auto& [word, part] :
       {std::pair{"attention_norm", LlamaPart::kAttentionNorm},
        {"attention_output_norm", LlamaPart::kAttentionOutputNorm},
        {"mlp_output_norm", LlamaPart::kMlpOutputNorm},
        {".qkv.weight", LlamaPart::kQkv},
        {"latent_down", LlamaPart::kLatentDown},
        {"query_up", LlamaPart::kQueryUp},
        {"kv_up", LlamaPart::kKvUp},
        {".qkv.bias", LlamaPart::kQkvBias},
        {".output.weight", LlamaPart::kAttentionOutput},
        {".output.bias", LlamaPart::kAttentionOutputBias},
        {"sinks", LlamaPart::kSinks},
        {"query_norm", LlamaPart::kQueryNorm},
        {"key_norm", LlamaPart::kKeyNorm},
        {"mlp_norm", LlamaPart::kMlpNorm},
        {"router.weight", LlamaPart::kRouter},
        {"router.bias", LlamaPart::kRouterBias},
        {"router.logit_bias", LlamaPart::kRouterLogitBias},
        {"experts.gate_up.bias", LlamaPart::kExpertsGateUpBias},
        {"experts.down.bias", LlamaPart::kExpertsDownBias},
        {"experts.gate_up", LlamaPart::kExpertsGateUp},
        {"experts.down", LlamaPart::kExpertsDown},
        {"shared.gate_up", LlamaPart::kSharedGateUp},
        {"shared.down", LlamaPart::kSharedDown},
        {"gate_up", LlamaPart::kGateUp},
        {".down", LlamaPart::kDown}}) {
    if (absl::StrContains(name, word)) return {part, layer};
  }
  ADD_FAILURE() << name;
  return {};
}

class OneSequence final : public TokenSource {
 public:
  explicit OneSequence(std::vector<int64_t> tokens)
      : tokens_(std::move(tokens)) {}
  absl::StatusOr<std::span<const int64_t>> Tokens(int32_t) override {
    return std::span<const int64_t>(tokens_);
  }

 private:
  std::vector<int64_t> tokens_;
};

// The loss of the sequence by the training model.
double TrainingLoss(WeightReader& reader, tensor_parallel::Ops& ops,
                    DType dtype, const std::vector<int64_t>& tokens) {
  const auto length = static_cast<int64_t>(tokens.size()) - 1;
  OneSequence source(tokens);
  auto model = *WholeLlama::Create(
      ops, {.model = reader.config(), .dtype = dtype, .length = length},
      source);
  for (const auto& window : model->windows()) {
    for (tensor_parallel::Parameter* parameter : window) {
      const auto [part, layer] = PartOf(parameter->name());
      std::vector<float> values(
          static_cast<size_t>(parameter->element_count()));
      TESSERA_EXPECT_OK(
          reader.Read(part, layer, 0, parameter->shape()[0], values));
      TESSERA_EXPECT_OK(
          Convert(DType::kF32, std::as_bytes(std::span(values)), dtype,
                  {parameter->value().data(),
                   static_cast<size_t>(parameter->value().size_in_bytes())}));
    }
  }
  return *model->Forward();
}

// Models with everything that a layer may have.
std::vector<model_files::ModelConfig> Models() {
  model_files::ModelConfig small = SmallModel();
  small.rotary.base = 500;
  small.norm_epsilon = 1e-3;
  model_files::ModelConfig biased = small;
  biased.tied_embeddings = true;
  biased.qkv_bias = biased.output_bias = true;
  biased.rotary.scaling = tensor_parallel::RotaryScaling::kLinear;
  biased.rotary.factor = 3;
  model_files::ModelConfig windows = small;
  windows.architecture = model_files::Architecture::kQwen3;
  windows.window = 4;
  windows.window_begin = 1;
  model_files::ModelConfig mixtral = small;
  mixtral.architecture = model_files::Architecture::kMixtral;
  mixtral.mixture = {.experts = 5, .per_token = 2, .intermediate = 9};
  model_files::ModelConfig dots = small;
  dots.architecture = model_files::Architecture::kDots1;
  dots.mixture = {.experts = 8,
                  .per_token = 3,
                  .intermediate = 4,
                  .shared_intermediate = 8,
                  .dense_layers = 1,
                  .scale = 1.5};
  model_files::ModelConfig gemma = small;
  gemma.architecture = model_files::Architecture::kGemma;
  gemma.tied_embeddings = true;
  model_files::ModelConfig gemma3 = gemma;
  gemma3.architecture = model_files::Architecture::kGemma3;
  gemma3.window = 4;
  gemma3.full_layers = {1};
  gemma3.local_rotary = tensor_parallel::RotaryFrequencies{.base = 50};
  gemma3.score_scalar = 3;
  gemma3.final_cap = 2;
  model_files::ModelConfig gemma2 = gemma;
  gemma2.architecture = model_files::Architecture::kGemma2;
  gemma2.score_scalar = 3;
  gemma2.attention_cap = 0.5;
  model_files::ModelConfig olmo = small;
  olmo.architecture = model_files::Architecture::kOlmo2;
  model_files::ModelConfig smol = small;
  smol.architecture = model_files::Architecture::kSmolLm3;
  smol.no_rope_layers = {1};
  model_files::ModelConfig oss = small;
  oss.architecture = model_files::Architecture::kGptOss;
  oss.qkv_bias = oss.output_bias = true;
  oss.window = 4;
  oss.full_layers = {1};
  oss.mixture = {.experts = 5, .per_token = 2, .intermediate = 9};
  model_files::ModelConfig deepseek2 = small;
  deepseek2.architecture = model_files::Architecture::kDeepSeekV2;
  deepseek2.kv_heads = deepseek2.heads;
  deepseek2.head_size = 9;
  deepseek2.latent = {.kv_rank = 6, .nope = 5, .rope = 4, .value = 7};
  deepseek2.mixture = {.experts = 8,
                       .per_token = 2,
                       .intermediate = 4,
                       .shared_intermediate = 8,
                       .normalise = false,
                       .groups = 4,
                       .groups_per_token = 2};
  model_files::ModelConfig deepseek3 = deepseek2;
  deepseek3.architecture = model_files::Architecture::kDeepSeekV3;
  deepseek3.latent.query_rank = 5;
  deepseek3.latent.interleaved = false;
  deepseek3.latent.score_mscale = 0.7;
  deepseek3.rotary.scaling = tensor_parallel::RotaryScaling::kYarn;
  deepseek3.rotary.factor = 4;
  deepseek3.mixture.dense_layers = 1;
  deepseek3.mixture.normalise = true;
  return {biased, windows, mixtral, dots, gemma,     gemma3,
          gemma2, olmo,    smol,    oss,  deepseek2, deepseek3};
}

TEST_P(LlamaDecoderTest, MatchesTrainingModel) {
  for (const model_files::ModelConfig& config : Models()) {
    SCOPED_TRACE(static_cast<int>(config.architecture));
    RandomWeights reader(config);
    TESSERA_ASSERT_OK_AND_ASSIGN(LlamaWeights weights,
                                 LlamaWeights::Read(reader, GetParam()));
    for (const int64_t length : {1, 2, 5, 31}) {
      const std::vector<int64_t> tokens =
          Tokens(length + 1, static_cast<uint64_t>(length));
      TESSERA_ASSERT_OK_AND_ASSIGN(auto decoder,
                                   LlamaDecoder::Create(weights, ops_, length));
      double loss = 0;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<double> logits,
                                     decoder->Append({{tokens[i]}}));
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit);
        loss += std::log(sum) - logits[static_cast<size_t>(tokens[i + 1])];
      }
      loss /= static_cast<double>(length);
      EXPECT_NEAR(loss, TrainingLoss(reader, ops_, GetParam(), tokens),
                  Tolerance(GetParam()) * loss)
          << length;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LlamaDecoderTest,
                         ::testing::Values(DType::kF64, DType::kF32),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param));
                         });

TEST(LlamaWeightsTest, RejectsOtherTypesAndForwardsErrors) {
  RandomWeights reader(SmallModel());
  EXPECT_THAT(LlamaWeights::Read(reader, DType::kBF16),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("f32 and f64 are allowed")));
  model_files::ModelConfig config = SmallModel();
  config.layers = 0;
  RandomWeights none(config);
  EXPECT_THAT(LlamaWeights::Read(none, DType::kF32),
              StatusIs(absl::StatusCode::kInvalidArgument));

  class Damaged : public RandomWeights {
   public:
    using RandomWeights::RandomWeights;
    absl::Status Read(LlamaPart part, int64_t layer, int64_t begin, int64_t end,
                      std::span<float> target) override {
      if (part == LlamaPart::kDown && layer == 2) {
        return absl::DataLossError("a hole");
      }
      return RandomWeights::Read(part, layer, begin, end, target);
    }
  };
  Damaged damaged(SmallModel());
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    EXPECT_THAT(LlamaWeights::Read(damaged, dtype),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr("layers.2.mlp.down.weight: a hole")));
  }
}

}  // namespace
}  // namespace tessera::train
