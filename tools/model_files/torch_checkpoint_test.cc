#include "tools/model_files/torch_checkpoint.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "tools/model_files/hugging_face_weights.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/megatron_names.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/pickle.h"
#include "tools/model_files/presets.h"
#include "tools/model_files/torch_archive.h"

namespace tessera::model_files {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kData[] = "tools/model_files/testdata/torch";
constexpr int64_t kMaxBytes = int64_t{1} << 24;

std::string NewDirectory(const std::string& name) {
  const fs::path path = fs::path(testing::TempDir()) / name;
  fs::remove_all(path);
  fs::create_directories(path);
  return path.string();
}

// The folder with the model.safetensors and config.json of a checkpoint of
// testdata, "qwen2/dcp" for example.
std::string ModelOf(const std::string& name) {
  return absl::StrCat(kData, "/", fs::path(name).parent_path().string());
}

// A checkpoint of testdata with its config.json.
std::string CopyOf(const std::string& name) {
  const std::string to = NewDirectory(name);
  for (const auto& entry :
       fs::directory_iterator(absl::StrCat(kData, "/", name))) {
    fs::copy_file(entry.path(), fs::path(to) / entry.path().filename());
    fs::permissions(fs::path(to) / entry.path().filename(),
                    fs::perms::owner_write, fs::perm_options::add);
  }
  fs::copy_file(ModelOf(name) + "/config.json", to + "/config.json");
  return to;
}

std::vector<float> RowsOf(const HuggingFaceWeights& weights,
                          const LlamaParameter& parameter, int64_t begin,
                          int64_t end) {
  const int64_t width = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
  std::vector<float> rows(static_cast<size_t>((end - begin) * width));
  EXPECT_THAT(weights.Read(parameter.part, parameter.layer, begin, end, rows),
              IsOk())
      << parameter.name;
  return rows;
}

class OtherFilesTest : public testing::TestWithParam<const char*> {};

TEST_P(OtherFilesTest, WeightsEqualThoseOfSafetensors) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceWeights expected,
                               HuggingFaceWeights::Open(ModelOf(GetParam())));
  const std::string directory = CopyOf(GetParam());
  EXPECT_TRUE(IsHuggingFaceModel(directory));
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceWeights weights,
                               HuggingFaceWeights::Open(directory));
  for (const LlamaParameter& parameter :
       LlamaParameters(expected.config().model)) {
    for (int64_t begin = 0; begin < parameter.shape[0]; ++begin) {
      for (int64_t end = begin; end <= parameter.shape[0]; ++end) {
        ASSERT_EQ(RowsOf(weights, parameter, begin, end),
                  RowsOf(expected, parameter, begin, end))
            << parameter.name << " rows " << begin << " to " << end;
      }
    }
  }
}

TEST_P(OtherFilesTest, MissingAndShortFilesAreNamed) {
  const std::string directory = CopyOf(GetParam());
  fs::resize_file(directory + "/__1_0.distcp", 900);
  const absl::StatusOr<HuggingFaceWeights> cut =
      HuggingFaceWeights::Open(directory);
  if (cut.ok()) {  // Data is read later.
    int failed = 0;
    for (const LlamaParameter& parameter :
         LlamaParameters(cut->config().model)) {
      std::vector<float> rows(static_cast<size_t>(
          parameter.shape[0] *
          (parameter.shape.size() == 2 ? parameter.shape[1] : 1)));
      failed += !cut->Read(parameter.part, parameter.layer, 0,
                           parameter.shape[0], rows)
                     .ok();
    }
    EXPECT_GT(failed, 0);
  }
  fs::remove(directory + "/__1_0.distcp");
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("__1_0.distcp")));
}

TEST_P(OtherFilesTest, CorruptedMetadataIsReadOrRejected) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string valid,
      ReadFile(absl::StrCat(kData, "/", GetParam(), "/.metadata"), kMaxBytes));
  TextMutator mutator({valid}, {"(", "t", "u", "b", "K\x07", "N"}, 5);
  for (int i = 0; i < 1000; ++i) {
    ParseTorchMetadata(mutator.Next()).status().IgnoreError();
  }
}

INSTANTIATE_TEST_SUITE_P(Files, OtherFilesTest,
                         testing::Values("qwen2/dcp", "qwen2/torch_dist",
                                         "deepseek_v3/torch_dist",
                                         "gpt_oss/torch_dist"));

TEST(MegatronNamesTest, RejectsTensorsThatConfigDoesNotDescribe) {
  const std::string directory = CopyOf("deepseek_v3/torch_dist");
  TESSERA_ASSERT_OK_AND_ASSIGN(std::string config,
                               ReadFile(directory + "/config.json", kMaxBytes));
  const std::string layers = "\"num_hidden_layers\": ";
  config.replace(config.find(layers + "2"), layers.size() + 1, layers + "1");
  ASSERT_THAT(WriteFile(directory + "/config.json", config), IsOk());
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("\"decoder.layers.1.input_layernorm.weight\" "
                                 "is not in the model")));
}

// The tensors of a reader hold each parameter once.
TEST(MegatronNamesTest, NamesEveryParameterOfEveryPreset) {
  for (const std::string_view preset : PresetNames()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                                 PresetConfig(preset));
    ASSERT_THAT(CheckMegatron(config), IsOk()) << preset;
    for (const MegatronLayers layers :
         {MegatronLayers::kInOneTensor, MegatronLayers::kApart}) {
      std::map<std::string, int64_t> counts;
      for (const LlamaParameter& parameter : LlamaParameters(config)) {
        for (const HuggingFacePiece& piece : parameter.pieces) {
          const std::vector<PiecePlace> places =
              MegatronPlaces(config, parameter, piece, layers);
          ASSERT_FALSE(places.empty()) << preset << " " << piece.name;
          int64_t& count = counts[places[0].name];
          count = 1;
          for (const int64_t size : places[0].shape) count *= size;
        }
      }
      int64_t sum = 0;
      for (const auto& [name, count] : counts) sum += count;
      const bool has_kinds = config.mixture.dense_layers > 0;
      if (has_kinds && layers == MegatronLayers::kInOneTensor) continue;
      EXPECT_EQ(sum, config.ParameterCount()) << preset;
    }
  }
}

// A tensor whose elements are their indices.
std::vector<float> Counted(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

absl::Status WriteFloats(TorchCheckpointWriter& writer, std::string_view name,
                         const std::vector<float>& values, size_t begin,
                         size_t end) {
  return writer.Write(
      name, static_cast<int64_t>(begin * sizeof(float)),
      std::as_bytes(std::span(values).subspan(begin, end - begin)));
}

TEST(TorchCheckpointTest, ReadsWhatItWritesInSeveralFiles) {
  const std::string directory = NewDirectory("written");
  const std::vector<StoredTensor> tensors = {
      {"vector", ElementType::kF32, {7}},
      {"matrix", ElementType::kF32, {5, 3}},
      {"cube", ElementType::kF32, {2, 4, 3}}};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TorchCheckpointWriter writer,
      TorchCheckpointWriter::Create(directory, tensors, 1500));
  const std::vector<float> values = Counted(24);
  ASSERT_THAT(WriteFloats(writer, "vector", values, 0, 7), IsOk());
  ASSERT_THAT(WriteFloats(writer, "matrix", values, 6, 15), IsOk());
  ASSERT_THAT(WriteFloats(writer, "matrix", values, 0, 6), IsOk());
  ASSERT_THAT(WriteFloats(writer, "cube", values, 0, 12), IsOk());
  ASSERT_THAT(WriteFloats(writer, "cube", values, 12, 15), IsOk());
  ASSERT_THAT(WriteFloats(writer, "cube", values, 15, 17), IsOk());
  ASSERT_THAT(WriteFloats(writer, "cube", values, 17, 18), IsOk());
  ASSERT_THAT(WriteFloats(writer, "cube", values, 18, 24), IsOk());
  ASSERT_THAT(writer.Commit(), IsOk());
  EXPECT_TRUE(fs::exists(directory + "/__0_1.distcp"));

  TESSERA_ASSERT_OK_AND_ASSIGN(const TorchCheckpoint checkpoint,
                               TorchCheckpoint::Open(directory));
  EXPECT_EQ(checkpoint.Names(),
            (std::vector<std::string>{"cube", "matrix", "vector"}));
  EXPECT_EQ(*checkpoint.Find("cube"), tensors[2]);
  for (int64_t first = 0; first < 8; ++first) {
    for (int64_t rows = 0; rows <= 8 - first; ++rows) {
      std::vector<double> read(static_cast<size_t>(rows * 3));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const TensorView view, TensorView::Of(std::span(read), {{rows, 3}}));
      ASSERT_THAT(checkpoint.ReadRows("cube", first, view), IsOk());
      for (size_t i = 0; i < read.size(); ++i) {
        ASSERT_EQ(read[i],
                  static_cast<double>(first * 3) + static_cast<double>(i));
      }
    }
  }
}

TEST(TorchCheckpointTest, RejectsInvalidWrites) {
  const std::string directory = NewDirectory("invalid");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TorchCheckpointWriter writer,
      TorchCheckpointWriter::Create(
          directory, {{"cube", ElementType::kF32, {2, 4, 3}}}, kMaxBytes));
  const std::vector<float> values = Counted(24);
  EXPECT_THAT(WriteFloats(writer, "other", values, 0, 3),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(WriteFloats(writer, "cube", values, 1, 4),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(
      writer.Write("cube", 1, std::as_bytes(std::span(values).first(1))),
      StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(WriteFloats(writer, "cube", values, 9, 15),
              StatusIs(absl::StatusCode::kOutOfRange));
  ASSERT_THAT(WriteFloats(writer, "cube", values, 0, 12), IsOk());
  EXPECT_THAT(writer.Commit(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("12 of its 24 elements")));
  EXPECT_THAT(TorchCheckpoint::Open(directory),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(TorchCheckpointTest, RejectsTwoModels) {
  const std::string directory = CopyOf("qwen2/dcp");
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename() != "config.json") fs::remove(entry.path());
  }
  std::vector<StoredTensor> tensors;
  for (const char* const model : {"ema.", "model."}) {
    tensors.push_back({absl::StrCat(model, "model.embed_tokens.weight"),
                       ElementType::kF32,
                       {0, 8}});
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      TorchCheckpointWriter writer,
      TorchCheckpointWriter::Create(directory, tensors, kMaxBytes));
  ASSERT_THAT(writer.Commit(), IsOk());
  EXPECT_THAT(HuggingFaceWeights::Open(directory),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("two models, under \"ema.\" and \"model.\"")));
}

TEST(TorchArchiveTest, CorruptedArchivesAreReadOrRejected) {
  const std::vector<float> values = Counted(6);
  const std::string valid =
      TorchTensorArchive(DType::kF32, std::vector<int64_t>{2, 3},
                         std::as_bytes(std::span(values)));
  const std::string path = NewDirectory("fuzz") + "/archive";
  TextMutator mutator({valid}, {"PK\x01\x02", "PK\x05\x06", "\xff\xff\xff\xff"},
                      7);
  int rejected = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string bytes = i == 0 ? valid : mutator.Next();
    FILE* const file = fopen(path.c_str(), "w+");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    fflush(file);
    const absl::StatusOr<TorchTensor> tensor =
        OpenTorchTensor(fileno(file), 0, static_cast<int64_t>(bytes.size()));
    if (i == 0) {
      ASSERT_THAT(tensor.status(), IsOk());
      EXPECT_EQ(tensor->shape, (std::vector<int64_t>{2, 3}));
    }
    rejected += !tensor.ok();
    fclose(file);
  }
  EXPECT_GT(rejected, 1000);
}

}  // namespace
}  // namespace tessera::model_files
