#include "tools/model_files/hugging_face_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/dtype/small_float.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/model_files/architectures.h"
#include "tools/model_files/presets.h"

namespace tessera::model_files {
namespace {

using ::testing::AllOf;
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

// Both from transformers, which dequantised the experts of the second.
TEST(HuggingFaceWeightsTest, ReadsGptOssInMxfp4AndDequantised) {
  const std::string models = "tools/model_files/testdata/gpt_oss/";
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto packed,
                               HuggingFaceWeights::Open(models + "mxfp4"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto plain,
                               HuggingFaceWeights::Open(models + "bf16"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto files,
                               SafetensorsSet::Open(models + "bf16"));
  const ModelConfig& config = plain.config().model;
  EXPECT_EQ(config, packed.config().model);
  for (const LlamaParameter& parameter : LlamaParameters(config)) {
    const int64_t rows = parameter.shape[0];
    const int64_t width = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
    std::vector<float> values[2];
    for (const bool is_packed : {false, true}) {
      values[is_packed].resize(static_cast<size_t>(rows * width));
      TESSERA_ASSERT_OK((is_packed ? packed : plain)
                            .Read(parameter.part, parameter.layer, 0, rows,
                                  values[is_packed]));
    }
    EXPECT_EQ(values[0], values[1]) << parameter.name;
    if (!parameter.stack) continue;
    std::vector<BF16> stored(values[0].size());
    TESSERA_ASSERT_OK(files.Read(parameter.pieces[0].name,
                                 std::as_writable_bytes(std::span(stored))));
    const int64_t all = parameter.stack->rows;
    for (int64_t row = 0; row < rows; ++row) {
      // Gates have even columns in the file, ups odd ones.
      const int64_t expert = row / all, unit = row % all;
      const int64_t column = parameter.stack->alternates
                                 ? unit % (all / 2) * 2 + unit / (all / 2)
                                 : unit;
      for (int64_t i = 0; i < width; ++i) {
        ASSERT_EQ(values[0][static_cast<size_t>(row * width + i)],
                  static_cast<float>(stored[static_cast<size_t>(
                      (expert * width + i) * all + column)]))
            << parameter.name;
      }
    }
    for (int64_t begin = 0; begin < rows; begin += 11) {
      const int64_t end = std::min(rows, begin + 95);
      std::vector<float> some(static_cast<size_t>((end - begin) * width));
      TESSERA_ASSERT_OK(
          packed.Read(parameter.part, parameter.layer, begin, end, some));
      EXPECT_TRUE(std::equal(some.begin(), some.end(),
                             values[0].begin() + begin * width))
          << parameter.name << " rows " << begin << " to " << end;
    }
  }
}

TEST(HuggingFaceWeightsTest, RejectsBlocksWithoutTheirScales) {
  const std::string directory = NewDirectory("no_scales");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const HuggingFaceConfig config,
      LoadHuggingFaceConfig(
          "tools/model_files/testdata/gpt_oss/mxfp4/config.json"));
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  TESSERA_ASSERT_OK(SaveHuggingFaceConfig(config, directory + "/config.json"));
  auto tensors = HuggingFaceTensors(config.model, ElementType::kBF16);
  for (StoredTensor& tensor : tensors) {
    if (!absl::EndsWith(tensor.name, "1.mlp.experts.down_proj")) continue;
    tensor = {tensor.name + "_blocks", ElementType::kU8, {3, 64, 1, 16}};
  }
  auto writer = *SafetensorsSetWriter::Create(directory, tensors, 1 << 20);
  for (const StoredTensor& tensor : tensors) {
    const std::vector<std::byte> zeros(
        static_cast<size_t>(*TensorBytes(tensor)));
    TESSERA_ASSERT_OK(writer.Write(tensor.name, zeros));
  }
  TESSERA_ASSERT_OK(writer.Commit());
  EXPECT_THAT(
      HuggingFaceWeights::Open(directory),
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr("layers.1.mlp.experts.down_proj_blocks\" needs"),
                     HasSubstr("down_proj_scales\" of [3, 64, 1]"))));
}

// Latent attention with and without a latent vector of queries, and the layers
// beyond the model's, for multi-token prediction, which are not read.
TEST(HuggingFaceWeightsTest, ReadsEveryTensorOfDeepSeek) {
  for (const int64_t query_rank : {0, 5}) {
    ModelConfig config = *PresetConfig("deepseek-v3");
    config.vocabulary = 11;
    config.hidden = 6;
    config.intermediate = 5;
    config.layers = 2;
    config.heads = config.kv_heads = 2;
    config.head_size = 5;
    config.mixture = {.experts = 4,
                      .per_token = 2,
                      .intermediate = 3,
                      .shared_intermediate = 3,
                      .dense_layers = 1};
    config.latent = {.query_rank = query_rank,
                     .kv_rank = 4,
                     .nope = 3,
                     .rope = 2,
                     .value = 3,
                     .score_mscale = 1};
    const std::string directory = NewDirectory("deepseek");
    ModelConfig longer = config;
    ++longer.layers;
    const auto expected = WriteModel(longer, directory);
    TESSERA_ASSERT_OK(
        SaveHuggingFaceConfig({.model = config}, directory + "/config.json"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                                 HuggingFaceWeights::Open(directory));
    EXPECT_EQ(weights.config().model, config);
    std::set<std::string> read_names;
    for (const LlamaParameter& parameter : LlamaParameters(config)) {
      const int64_t columns =
          parameter.shape.size() == 2 ? parameter.shape[1] : 1;
      std::vector<float> read(
          static_cast<size_t>(parameter.shape[0] * columns)),
          whole;
      TESSERA_ASSERT_OK(weights.Read(parameter.part, parameter.layer, 0,
                                     parameter.shape[0], read));
      for (const HuggingFacePiece& piece : parameter.pieces) {
        const auto& values = expected.at(piece.name);
        whole.insert(whole.end(), values.begin(), values.end());
        read_names.insert(piece.name);
      }
      EXPECT_EQ(read, whole) << parameter.name;
    }
    for (const auto& [name, values] : expected) {
      EXPECT_EQ(read_names.contains(name),
                !absl::StrContains(name, "layers.2."))
          << name;
    }
    EXPECT_EQ(read_names.contains(
                  "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
              true);
    EXPECT_EQ(read_names.contains("model.layers.0.self_attn.q_proj.weight"),
              query_rank == 0);
  }
}

// The weights of a model in fp8, with a scale for each block of 128 x 128.
TEST(HuggingFaceWeightsTest, MultipliesWeightsInFp8ByTheirScales) {
  ModelConfig config = SmallModel(true);
  config.hidden = 200;
  config.intermediate = 300;
  config.layers = 1;
  const std::string directory = NewDirectory("scales");
  WriteModel(config, directory);
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  const auto write = [&](const std::vector<int64_t>& scales_shape) {
    std::vector<StoredTensor> tensors;
    for (StoredTensor tensor : HuggingFaceTensors(config, ElementType::kF32)) {
      if (tensor.name == up) tensor.type = ElementType::kF8E4M3;
      tensors.push_back(std::move(tensor));
    }
    tensors.push_back({up + "_scale_inv", ElementType::kF32, scales_shape});
    auto writer = *SafetensorsSetWriter::Create(directory, tensors, 1 << 24);
    for (const StoredTensor& tensor : tensors) {
      std::vector<std::byte> bytes(static_cast<size_t>(*TensorBytes(tensor)));
      if (tensor.name == up) {
        // 1.5 in fp8_e4m3.
        std::fill(bytes.begin(), bytes.end(), std::byte{0x3c});
      } else if (absl::EndsWith(tensor.name, "_scale_inv")) {
        std::vector<float> scales(bytes.size() / 4);
        for (size_t i = 0; i < scales.size(); ++i) {
          scales[i] = static_cast<float>(i + 1);
        }
        std::memcpy(bytes.data(), scales.data(), bytes.size());
      }
      TESSERA_EXPECT_OK(writer.Write(tensor.name, bytes));
    }
    TESSERA_EXPECT_OK(writer.Commit());
  };
  write({3, 2});
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                               HuggingFaceWeights::Open(directory));
  std::vector<float> rows(200 * 200);
  // Rows of gate precede those of up.
  TESSERA_ASSERT_OK(
      weights.Read(LlamaPart::kGateUp, 0, 300 + 90, 300 + 290, rows));
  for (int64_t row = 90; row < 290; ++row) {
    for (int64_t column = 0; column < 200; ++column) {
      const auto block = static_cast<float>(row / 128 * 2 + column / 128);
      EXPECT_EQ(rows[static_cast<size_t>((row - 90) * 200 + column)],
                1.5f * (block + 1));
    }
  }
  write({2, 2});
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("_scale_inv\" is [2, 2]; it must be [3, 2]")));
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

// The values of a parameter, whole.
std::vector<float> ReadAll(const HuggingFaceWeights& weights,
                           const LlamaParameter& parameter) {
  size_t size = 1;
  for (const int64_t n : parameter.shape) size *= static_cast<size_t>(n);
  std::vector<float> values(size);
  TESSERA_EXPECT_OK(weights.Read(parameter.part, parameter.layer, 0,
                                 parameter.shape[0], values));
  return values;
}

struct NamedTensor {
  StoredTensor spec = {};
  std::vector<float> values = {};
};

// Replaces the safetensors of a directory.
void Rewrite(const std::string& directory,
             const std::vector<NamedTensor>& tensors) {
  std::vector<StoredTensor> specs;
  for (const NamedTensor& tensor : tensors) specs.push_back(tensor.spec);
  auto writer = *SafetensorsSetWriter::Create(directory, specs, 1 << 20);
  for (const NamedTensor& tensor : tensors) {
    TESSERA_EXPECT_OK(writer.Write(tensor.spec.name,
                                   std::as_bytes(std::span(tensor.values))));
  }
  TESSERA_EXPECT_OK(writer.Commit());
}

std::vector<NamedTensor> TensorsOf(const std::string& directory,
                                   const ModelConfig& config) {
  const auto values = WriteModel(config, directory);
  std::vector<NamedTensor> tensors;
  for (StoredTensor& spec : HuggingFaceTensors(config, ElementType::kF32)) {
    tensors.push_back({spec, values.at(spec.name)});
  }
  return tensors;
}

// Compares all parameters with those of `original`, a copy of the directory.
void ExpectSameWeights(const std::string& directory,
                       const std::string& original) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                               HuggingFaceWeights::Open(directory));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected,
                               HuggingFaceWeights::Open(original));
  for (const LlamaParameter& parameter :
       LlamaParameters(weights.config().model)) {
    EXPECT_EQ(ReadAll(weights, parameter), ReadAll(expected, parameter))
        << parameter.name;
  }
}

TEST(HuggingFaceWeightsTest, FindsTensorsWithoutPrefix) {
  const std::string original = NewDirectory("with_prefix");
  const std::string directory = NewDirectory("without_prefix");
  TensorsOf(original, SmallModel(true));
  std::vector<NamedTensor> tensors = TensorsOf(directory, SmallModel(true));
  for (NamedTensor& tensor : tensors) {
    tensor.spec.name = absl::StripPrefix(tensor.spec.name, "model.");
  }
  Rewrite(directory, tensors);
  ExpectSameWeights(directory, original);
}

TEST(HuggingFaceWeightsTest, TiedTableMayBeThatOfHead) {
  const std::string original = NewDirectory("tied_embedding");
  const std::string directory = NewDirectory("tied_head");
  TensorsOf(original, SmallModel(true));
  std::vector<NamedTensor> tensors = TensorsOf(directory, SmallModel(true));
  NamedTensor head = tensors.front();
  EXPECT_EQ(head.spec.name, "model.embed_tokens.weight");
  head.spec.name = "lm_head.weight";
  std::vector<NamedTensor> renamed = tensors;
  renamed.front() = head;
  Rewrite(directory, renamed);
  ExpectSameWeights(directory, original);
  // Both, first equal, then different.
  tensors.push_back(head);
  Rewrite(directory, tensors);
  ExpectSameWeights(directory, original);
  tensors.back().values.back() += 1;
  Rewrite(directory, tensors);
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("lm_head.weight"),
                             HasSubstr("\"tie_word_embeddings\": false"))));
}

TEST(HuggingFaceWeightsTest, ReadsFusedExperts) {
  for (const Architecture architecture :
       {Architecture::kMixtral, Architecture::kQwen3Moe,
        Architecture::kDots1}) {
    ModelConfig config = SmallModel(false);
    config.architecture = architecture;
    const ArchitectureTraits& traits = TraitsOf(architecture);
    config.mixture = {.experts = 3, .per_token = 2, .intermediate = 5};
    if (traits.mixture.like_deepseek) {
      config.mixture.dense_layers = 1;
      config.mixture.shared_intermediate = 5;
    }
    TESSERA_ASSERT_OK(config.Validate());
    const std::string original = NewDirectory("separate_experts");
    const std::string directory = NewDirectory("fused_experts");
    TensorsOf(original, config);
    std::vector<NamedTensor> tensors = TensorsOf(directory, config);
    std::erase_if(tensors, [](const NamedTensor& tensor) {
      return absl::StrContains(tensor.spec.name, ".experts.");
    });
    const std::string module(traits.mixture.module);
    for (NamedTensor& tensor : tensors) {
      tensor.spec.name = absl::StrReplaceAll(
          tensor.spec.name, {{module + ".gate.weight", "mlp.gate.weight"}});
    }
    {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                                   HuggingFaceWeights::Open(original));
      for (const LlamaParameter& parameter : LlamaParameters(config)) {
        const bool is_down = parameter.part == LlamaPart::kExpertsDown;
        if (!is_down && parameter.part != LlamaPart::kExpertsGateUp) continue;
        tensors.push_back(
            {{absl::StrCat("model.layers.", parameter.layer, ".mlp.experts.",
                           is_down ? "down_proj" : "gate_up_proj"),
              ElementType::kF32,
              {3, parameter.shape[0] / 3, parameter.shape[1]}},
             ReadAll(weights, parameter)});
      }
    }
    Rewrite(directory, tensors);
    ExpectSameWeights(directory, original);
    tensors.back().spec.shape[0] = 1;
    tensors.back().values.resize(tensors.back().values.size() / 3);
    Rewrite(directory, tensors);
    EXPECT_THAT(HuggingFaceWeights::Open(directory),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr("experts.down_proj\" is [1, 6, 5]; its "
                                   "config.json needs [3, 6, 5]")));
  }
}

TEST(HuggingFaceWeightsTest, OnlyNeededTensorsNeedKnownType) {
  const std::string directory = NewDirectory("other_types");
  const std::map<std::string, std::vector<float>> all =
      WriteModel(SmallModel(false), directory);
  const std::string path = directory + "/model.safetensors";
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string file, ReadFile(path, 1 << 20));
  // Other names of the type have the same length.
  const auto with_type = [&](std::string_view tensor, std::string_view type) {
    std::string changed = file;
    const size_t at = changed.find(absl::StrCat("\"", tensor, "\""));
    const size_t dtype = changed.find("\"F32\"", at);
    changed.replace(dtype, 5, absl::StrCat("\"", type, "\""));
    TESSERA_EXPECT_OK(WriteFile(path, changed));
  };
  with_type("lm_head.weight", "C64");
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("tensor \"lm_head.weight\""),
                             HasSubstr("\"C64\""))));
  TESSERA_ASSERT_OK(SaveHuggingFaceConfig({.model = SmallModel(true)},
                                          directory + "/config.json"));
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace tessera::model_files
