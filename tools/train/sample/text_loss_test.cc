#include <cmath>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json/json.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/model_files/llama_names.h"
#include "tools/train/parity/testing/reference_llama.h"
#include "tools/train/sample/generate.h"
#include "tools/train/testing/random_weights.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

// The weights of a reader for the independent model in float64.
ReferenceWeights ReferenceOf(WeightReader& reader) {
  const model_files::ModelConfig& config = reader.config();
  ReferenceWeights weights = ReferenceZeros(config);
  std::map<std::string, std::vector<double>*> by_name;
  for (const NamedWeights& named : TensorsOf(weights)) {
    by_name[named.name] = named.values;
  }
  for (const auto& parameter : model_files::LlamaParameters(config)) {
    const int64_t columns =
        parameter.shape.size() == 2 ? parameter.shape[1] : 1;
    for (const auto& piece : parameter.pieces) {
      std::vector<float> rows(static_cast<size_t>(piece.rows * columns));
      TESSERA_EXPECT_OK(reader.Read(parameter.part, parameter.layer,
                                    piece.target_row,
                                    piece.target_row + piece.rows, rows));
      by_name.at(piece.name)->assign(rows.begin(), rows.end());
    }
  }
  return weights;
}

class TextLossTest : public ::testing::Test {
 protected:
  tensor_parallel::CpuOps ops_{{.threads = 1}};
};

TEST_F(TextLossTest, MatchesReferenceForEveryWindow) {
  for (const bool is_tied : {false, true}) {
    model_files::ModelConfig config = SmallModel();
    config.tied_embeddings = is_tied;
    RandomWeights reader(config);
    const ReferenceWeights weights = ReferenceOf(reader);
    std::mt19937_64 random(7);
    for (const size_t count : {2u, 3u, 33u, 50u}) {
      std::vector<int64_t> tokens(count);
      for (int64_t& token : tokens) {
        token = static_cast<int64_t>(random() % 264);
      }
      for (const int64_t window : {1, 2, 7, 32, 49, 64}) {
        double sum = 0;
        int64_t windows = 0;
        for (size_t begin = 0; begin + 1 < count; ++windows) {
          const size_t length =
              std::min(static_cast<size_t>(window), count - 1 - begin);
          sum += static_cast<double>(length) *
                 ReferenceLoss(
                     config, weights,
                     {std::span(tokens).subspan(begin, length + 1), 1, length});
          begin += length;
        }
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const TextLoss loss, LossOfTokens(reader, tokens, window, ops_));
        const double expected = sum / static_cast<double>(count - 1);
        EXPECT_NEAR(loss.loss, expected, 1e-5 * expected)
            << count << " tokens, window " << window;
        EXPECT_EQ(loss.tokens, static_cast<int64_t>(count) - 1);
        EXPECT_EQ(loss.windows, windows);
        EXPECT_NEAR(std::log(loss.perplexity()), loss.loss, 1e-12);
      }
    }
  }
}

// Weights, tokens and loss come from transformers (make_testdata.py).
TEST_F(TextLossTest, MatchesTransformers) {
  const std::string directory = "tools/checkpoint/testdata";
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               ReadFile(directory + "/expected.json", 1 << 20));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                               ParseJson(text, {.max_bytes = 1 << 20}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                               OpenWeights(directory + "/llama"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const TextLoss loss,
      LossOfTokens(*weights, expected["tokens"].get<std::vector<int64_t>>(), 32,
                   ops_));
  EXPECT_NEAR(loss.loss, expected["loss"].get<double>(), 1e-6);
}

TEST_F(TextLossTest, AUniformModelHasThePerplexityOfItsVocabulary) {
  FixedLogits reader(std::vector<float>(264, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const TextLoss loss, LossOfTokens(reader, {{5, 7, 200, 263}}, 64, ops_));
  EXPECT_NEAR(loss.perplexity(), 264, 1e-4);
}

TEST_F(TextLossTest, RejectsTextsAndWindowsWithoutALoss) {
  RandomWeights reader(SmallModel());
  const auto code = absl::StatusCode::kInvalidArgument;
  for (const int64_t window : {-1, 0, 65}) {
    EXPECT_THAT(LossOfTokens(reader, {{1, 2}}, window, ops_),
                StatusIs(code, HasSubstr("give 1 to 64")));
  }
  EXPECT_THAT(LossOfTokens(reader, {}, 8, ops_),
              StatusIs(code, HasSubstr("a text of 0 tokens")));
  EXPECT_THAT(LossOfTokens(reader, {{1}}, 8, ops_),
              StatusIs(code, HasSubstr("a text of 1 tokens")));
  EXPECT_THAT(LossOfTokens(reader, {{1, 264}}, 8, ops_),
              StatusIs(code, HasSubstr("token 264")));
  FixedLogits diverged(std::vector<float>(264, std::nanf("")));
  EXPECT_THAT(LossOfTokens(diverged, {{1, 2}}, 8, ops_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("weights have diverged")));
}

}  // namespace
}  // namespace tessera::train
