#include "tools/model_files/hugging_face_weights.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::model_files {
namespace {

using ::testing::HasSubstr;

ModelConfig SmallModel(bool is_tied) {
  ModelConfig config = {.vocabulary = 11,
                        .hidden = 6,
                        .intermediate = 5,
                        .layers = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_size = 2};
  config.tied_embeddings = is_tied;
  config.max_positions = 16;
  return config;
}

// A directory with random weights; returns these by name.
std::map<std::string, std::vector<float>> WriteModel(
    const ModelConfig& config, const std::string& directory) {
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  TESSERA_EXPECT_OK(
      SaveHuggingFaceConfig({.model = config}, directory + "/config.json"));
  const auto tensors = HuggingFaceTensors(config, ElementType::kF32);
  auto writer = *SafetensorsSetWriter::Create(directory, tensors, 1 << 20);
  std::mt19937 random(1);
  std::map<std::string, std::vector<float>> all;
  for (const StoredTensor& tensor : tensors) {
    std::vector<float> values(static_cast<size_t>(*TensorBytes(tensor) / 4));
    for (float& value : values) value = static_cast<float>(random() % 1000);
    TESSERA_EXPECT_OK(
        writer.Write(tensor.name, std::as_bytes(std::span(values))));
    all[tensor.name] = values;
  }
  TESSERA_EXPECT_OK(writer.Commit());
  return all;
}

std::string NewDirectory(std::string_view name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

TEST(HuggingFaceWeightsTest, ReadsAnyRowsOfEveryParameter) {
  for (const bool is_tied : {false, true}) {
    const ModelConfig config = SmallModel(is_tied);
    const std::string directory = NewDirectory("rows");
    const auto expected = WriteModel(config, directory);
    EXPECT_TRUE(IsHuggingFaceModel(directory));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                                 HuggingFaceWeights::Open(directory));
    EXPECT_EQ(weights.config().model, config);
    for (const LlamaParameter& parameter : LlamaParameters(config)) {
      const auto width = static_cast<size_t>(
          parameter.shape.size() == 2 ? parameter.shape[1] : 1);
      std::vector<float> whole;
      for (const HuggingFacePiece& piece : parameter.pieces) {
        const auto& values = expected.at(piece.name);
        whole.insert(whole.end(), values.begin(), values.end());
      }
      const int64_t rows = parameter.shape[0];
      for (int64_t begin = 0; begin <= rows; ++begin) {
        for (int64_t end = begin; end <= rows; ++end) {
          std::vector<float> read(static_cast<size_t>(end - begin) * width);
          TESSERA_ASSERT_OK(
              weights.Read(parameter.part, parameter.layer, begin, end, read));
          const auto from = whole.begin() + begin * static_cast<int64_t>(width);
          EXPECT_TRUE(std::equal(read.begin(), read.end(), from))
              << parameter.name << " rows " << begin << " to " << end;
        }
      }
    }
    std::vector<float> head(11 * 6);
    TESSERA_ASSERT_OK(weights.Read(LlamaPart::kHead, -1, 0, 11, head));
    EXPECT_EQ(head, expected.at(is_tied ? "model.embed_tokens.weight"
                                        : "lm_head.weight"));
  }
}

TEST(HuggingFaceWeightsTest, RejectsInvalidRows) {
  const std::string directory = NewDirectory("refused_rows");
  WriteModel(SmallModel(false), directory);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                               HuggingFaceWeights::Open(directory));
  std::vector<float> row(6, 7);
  for (const auto& [begin, end] :
       {std::pair{-1, 0}, {11, 12}, {3, 2}, {0, 2}, {0, 0}}) {
    EXPECT_THAT(weights.Read(LlamaPart::kEmbedding, -1, begin, end, row),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("embedding.weight")));
  }
  EXPECT_EQ(row, std::vector<float>(6, 7));
}

TEST(HuggingFaceWeightsTest, NamesMissingAndDamagedFiles) {
  const std::string directory = NewDirectory("damaged");
  EXPECT_FALSE(IsHuggingFaceModel(directory));
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  WriteModel(SmallModel(true), directory);
  // Another model's config.json: a missing tensor, and other shapes.
  TESSERA_ASSERT_OK(SaveHuggingFaceConfig({.model = SmallModel(false)},
                                          directory + "/config.json"));
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no tensor \"lm_head.weight\"")));
  ModelConfig wider = SmallModel(true);
  wider.intermediate = 7;
  TESSERA_ASSERT_OK(
      SaveHuggingFaceConfig({.model = wider}, directory + "/config.json"));
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("[5, 6]; its config.json needs [7, 6]")));
  TESSERA_ASSERT_OK(WriteFile(directory + "/config.json", "{"));
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace tessera::model_files
