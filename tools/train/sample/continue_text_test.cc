#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/sample/generate.h"
#include "tools/train/sample/llama_decoder.h"
#include "tools/train/testing/random_weights.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ContinueTextTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Continue(WeightReader& reader,
                                       const SampleOptions& options) {
    return ContinueText(reader, tokenizer_, ops_, options);
  }

  // Computes each token from all previous ones, without a cache, and keeps at
  // most `positions` tokens, or half of them after an overflow.
  std::string GreedyText(const std::string& prompt, int64_t count) {
    LlamaWeights weights = *LlamaWeights::Read(reader_, DType::kF32);
    const size_t positions = 64;
    std::vector<int64_t> tokens;
    for (const text::TokenId id : tokenizer_.Encode(prompt)) {
      tokens.push_back(id);
    }
    std::string text = prompt;
    size_t seen = std::min(tokens.size(), positions);
    for (int64_t i = 0; i < count; ++i) {
      auto decoder = *LlamaDecoder::Create(weights, ops_, positions);
      const auto logits =
          *decoder->Append(std::span<const int64_t>(tokens).last(seen));
      const int64_t token =
          *ChooseToken(std::span(logits).first(257), {.temperature = 0}, 0);
      if (token == 256) break;
      tokens.push_back(token);
      text += static_cast<char>(token);
      seen = seen == positions ? positions / 2 : seen + 1;
    }
    return PrintableText(text);
  }

  tensor_parallel::CpuOps ops_{{.threads = 1}};
  text::ByteTokenizer tokenizer_;
  RandomWeights reader_{SmallModel()};
};

TEST_F(ContinueTextTest, GreedyTextMatchesModelWithoutCache) {
  for (const std::string prompt : {"The ", "x", "\xff\x01\xc3"}) {
    EXPECT_THAT(
        Continue(reader_, {.prompt = prompt, .tokens = 40, .temperature = 0}),
        IsOkAndHolds(GreedyText(prompt, 40)));
  }
}

TEST_F(ContinueTextTest, ContinuesBeyondModelPositions) {
  // The text or the prompt alone uses all 64 positions.
  for (const size_t length : {60u, 63u, 64u, 65u, 200u}) {
    const std::string prompt(length, 'a');
    EXPECT_THAT(
        Continue(reader_, {.prompt = prompt, .tokens = 100, .temperature = 0}),
        IsOkAndHolds(GreedyText(prompt, 100)))
        << length;
  }
}

TEST_F(ContinueTextTest, TheSeedDecides) {
  SampleOptions options = {.tokens = 50, .temperature = 1, .seed = 7};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               Continue(reader_, options));
  EXPECT_THAT(text, StartsWith("The "));
  EXPECT_THAT(Continue(reader_, options), IsOkAndHolds(text));
  options.seed = 8;
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string other,
                               Continue(reader_, options));
  EXPECT_NE(other, text);
  // A shorter sample is a prefix of a longer one.
  options.tokens = 10;
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string beginning,
                               Continue(reader_, options));
  EXPECT_THAT(other, StartsWith(beginning));
}

TEST_F(ContinueTextTest, StopsAtEndOfText) {
  std::vector<float> values(264);
  values['a'] = 1;
  FixedLogits a(values);
  EXPECT_THAT(Continue(a, {.prompt = "b", .tokens = 5, .temperature = 0}),
              IsOkAndHolds("baaaaa"));
  values[256] = 2;
  FixedLogits end(values);
  EXPECT_THAT(Continue(end, {.prompt = "b", .tokens = 5, .temperature = 0}),
              IsOkAndHolds("b"));
}

TEST_F(ContinueTextTest, StopsAtEveryEndOfTheModel) {
  class WithEnds final : public FixedLogits {
   public:
    using FixedLogits::FixedLogits;
    absl::StatusOr<std::vector<int64_t>> EndsOfText() const override {
      return std::vector<int64_t>{'x', 'y'};
    }
  };
  for (const char end : {'x', 'y', 'z'}) {
    std::vector<float> values(264);
    values[static_cast<size_t>(end)] = 1;
    WithEnds reader(values);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Continuation found,
        ContinueTokens(reader, tokenizer_, ops_,
                       {.prompt = "b", .tokens = 3, .temperature = 0}));
    EXPECT_EQ(found.ended, end != 'z');
    EXPECT_EQ(found.tokens.size(), end == 'z' ? 3u : 0u);
  }
}

TEST_F(ContinueTextTest, BeginsAsTheTokenizerSays) {
  text::ByteTokenizer begins;
  begins.set_begin_of_text({'T', 'h'});
  for (const char* prompt : {"e ", ""}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Continuation found,
        ContinueTokens(reader_, begins, ops_,
                       {.prompt = prompt, .tokens = 20, .temperature = 0}));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Continuation expected,
        ContinueTokens(reader_, tokenizer_, ops_,
                       {.prompt = absl::StrCat("Th", prompt),
                        .tokens = 20,
                        .temperature = 0}));
    EXPECT_EQ(found.prompt_tokens, expected.prompt_tokens);
    EXPECT_EQ(found.tokens, expected.tokens);
  }
}

TEST_F(ContinueTextTest, NeverTakesASpareTokenOfTheModel) {
  std::vector<float> values(264);
  values['a'] = 1;
  values[257] = values[263] = 1000;
  FixedLogits reader(values);
  EXPECT_THAT(Continue(reader, {.prompt = "", .tokens = 3, .temperature = 0}),
              IsOkAndHolds("aaa"));
}

TEST_F(ContinueTextTest, OmitsIncompleteCharacter) {
  std::vector<float> values(264);
  values[0xC3] = 1;
  FixedLogits reader(values);
  EXPECT_THAT(
      Continue(reader, {.prompt = "caf", .tokens = 1, .temperature = 0}),
      IsOkAndHolds("caf"));
  EXPECT_THAT(
      Continue(reader, {.prompt = "caf", .tokens = 2, .temperature = 0}),
      IsOkAndHolds("caf\\xc3"));
}

TEST_F(ContinueTextTest, AnEmptyPromptBeginsAText) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string text,
      Continue(reader_, {.prompt = "", .tokens = 20, .temperature = 0}));
  EXPECT_FALSE(text.empty());

  class NoEnd : public text::ByteTokenizer {
   public:
    std::optional<text::TokenId> end_of_text() const override {
      return std::nullopt;
    }
  };
  EXPECT_THAT(ContinueText(reader_, NoEnd(), ops_, {.prompt = ""}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("an empty prompt")));
}

TEST_F(ContinueTextTest, ReturnsOnlyPromptForZeroTokens) {
  EXPECT_THAT(Continue(reader_, {.prompt = "a\x1b", .tokens = 0}),
              IsOkAndHolds("a\\x1b"));
}

TEST_F(ContinueTextTest, RejectsInvalidOptions) {
  const auto code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Continue(reader_, {.tokens = -1}),
              StatusIs(code, HasSubstr("a sample of -1 tokens; give 0")));
  EXPECT_THAT(Continue(reader_, {.temperature = -0.5}),
              StatusIs(code, HasSubstr("temperature -0.5; it must be at")));
  EXPECT_THAT(Continue(reader_, {.temperature = std::nan("")}),
              StatusIs(code, HasSubstr("temperature nan")));
  model_files::ModelConfig config = SmallModel();
  config.vocabulary = 256;
  RandomWeights small(config);
  EXPECT_THAT(Continue(small, {}),
              StatusIs(code, HasSubstr("the tokenizer has 257 tokens, the "
                                       "model 256")));
}

TEST_F(ContinueTextTest, ReportsDivergedModel) {
  FixedLogits reader(std::vector<float>(264, std::nanf("")));
  EXPECT_THAT(Continue(reader, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("weights have diverged")));
}

}  // namespace
}  // namespace tessera::train
