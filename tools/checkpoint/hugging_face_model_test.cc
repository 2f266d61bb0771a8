// Exports weights from checkpoints and imports them, compared with the results
// of transformers.

#include "tools/checkpoint/hugging_face_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/checkpoint/write_run.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/hugging_face_weights.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/safetensors_set.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/imported_weights.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/testing/mesh_run.h"
#include "tools/train/testing/whole_llama.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;
namespace tp = tensor_parallel;
using model_files::HuggingFaceWeights;
using model_files::LlamaParameter;
using model_files::SafetensorsSet;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using train::ModelReader;
using train::TrainRank;
using train::testing::NewRunDirectory;

constexpr char kModel[] = "tools/checkpoint/testdata/llama";
constexpr char kExpected[] = "tools/checkpoint/testdata/expected.json";

class GivenTokens final : public train::TokenSource {
 public:
  explicit GivenTokens(std::vector<int64_t> tokens)
      : tokens_(std::move(tokens)) {}
  void Set(size_t at, int64_t token) { tokens_[at] = token; }
  absl::StatusOr<std::span<const int64_t>> Tokens(int32_t) override {
    return std::span<const int64_t>(tokens_);
  }

 private:
  std::vector<int64_t> tokens_;
};

// Runs a whole model on one rank, with the weights of a checkpoint.
class WholeModel {
 public:
  static absl::StatusOr<std::unique_ptr<WholeModel>> Create(
      ModelReader& reader, std::vector<int64_t> tokens) {
    std::unique_ptr<WholeModel> whole(new WholeModel(std::move(tokens)));
    const auto length = static_cast<int64_t>(whole->size_) - 1;
    TESSERA_ASSIGN_OR_RETURN(
        whole->model_,
        train::WholeLlama::Create(whole->ops_,
                                  {.model = reader.config(), .length = length},
                                  whole->tokens_));
    std::map<std::string, tp::Parameter*> parameters;
    for (const auto& window : whole->model_->windows()) {
      for (tp::Parameter* p : window) parameters[p->name()] = p;
    }
    for (const LlamaParameter& parameter :
         model_files::LlamaParameters(reader.config())) {
      tp::Parameter* const own = parameters.at(parameter.name);
      const TensorView value = own->value();
      TESSERA_RETURN_IF_ERROR(
          reader.Read(parameter.part, parameter.layer, 0, parameter.shape[0],
                      {reinterpret_cast<float*>(value.data()),
                       static_cast<size_t>(value.element_count())}));
    }
    return whole;
  }

  GivenTokens& tokens() { return tokens_; }
  absl::StatusOr<double> Loss() {
    TESSERA_ASSIGN_OR_RETURN(const double loss, model_->Forward());
    model_->Release();
    return loss;
  }

 private:
  explicit WholeModel(std::vector<int64_t> tokens)
      : size_(tokens.size()),
        ops_({.threads = 1}),
        tokens_(std::move(tokens)) {}

  const size_t size_;
  tp::CpuOps ops_;
  GivenTokens tokens_;
  std::unique_ptr<train::WholeLlama> model_;
};

// Expects each tensor of `a` in `b` with the same bytes.
void ExpectSameTensors(const std::string& a, const std::string& b) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const SafetensorsSet first,
                               SafetensorsSet::Open(a));
  TESSERA_ASSERT_OK_AND_ASSIGN(const SafetensorsSet second,
                               SafetensorsSet::Open(b));
  EXPECT_EQ(first.Names(), second.Names());
  for (const std::string& name : first.Names()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const int64_t bytes,
                                 model_files::TensorBytes(*first.Find(name)));
    std::vector<std::byte> x(static_cast<size_t>(bytes)), y = x;
    TESSERA_ASSERT_OK(first.Read(name, x));
    ASSERT_THAT(second.Read(name, y), IsOk());
    EXPECT_EQ(x, y) << name;
  }
}

TEST(ImportModelTest, MatchesTransformers) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               ReadFile(kExpected, 1 << 20));
  const auto expected = nlohmann::json::parse(text);
  const auto tokens = expected["tokens"].get<std::vector<int64_t>>();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(kModel, NewRunDirectory("computes"),
                  {.mesh = {.dp = 2, .pp = 2, .tp = 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reader, ModelReader::Open(path));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               WholeModel::Create(*reader, tokens));
  TESSERA_ASSERT_OK_AND_ASSIGN(const double loss, model->Loss());
  EXPECT_NEAR(loss, expected["loss"].get<double>(), 1e-6);
  // Changing the last target, which is not an input, changes the loss by a
  // difference of two logits.
  const auto positions = static_cast<double>(tokens.size() - 1);
  const auto logits = expected["logits"].back().get<std::vector<double>>();
  ASSERT_EQ(static_cast<int64_t>(logits.size()), reader->config().vocabulary);
  double largest = 0;
  for (size_t v = 0; v < logits.size(); ++v) {
    model->tokens().Set(tokens.size() - 1, static_cast<int64_t>(v));
    TESSERA_ASSERT_OK_AND_ASSIGN(const double other, model->Loss());
    const double error =
        positions * (loss - other) -
        (logits[v] - logits[static_cast<size_t>(tokens.back())]);
    EXPECT_NEAR(error, 0, 1e-4);
    largest = std::max(largest, std::abs(error));
  }
  RecordProperty("loss", absl::StrCat(loss));
  RecordProperty("largest_logit_error", absl::StrCat(largest));
}

TEST(ExportModelTest, RoundTripsImportBitForBit) {
  const std::string directory = NewRunDirectory("round");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(kModel, directory + "/ckpt",
                  {.mesh = {.dp = 3, .pp = 2, .tp = 4}, .zero = 1}));
  for (const int64_t shard : {int64_t{1} << 40, int64_t{1000}}) {
    const std::string to = absl::StrCat(directory, "/export", shard);
    TESSERA_ASSERT_OK(ExportModel(path, to, {.max_shard_bytes = shard}));
    EXPECT_EQ(fs::exists(to + "/model.safetensors"), shard > 1000);
    EXPECT_EQ(fs::exists(to + "/model.safetensors.index.json"), shard == 1000);
    ExpectSameTensors(kModel, to);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto config,
        model_files::LoadHuggingFaceConfig(to + "/config.json"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto original,
                                 model_files::LoadHuggingFaceConfig(
                                     absl::StrCat(kModel, "/config.json")));
    EXPECT_EQ(config, original);
  }
}

// Trains two steps and saves a checkpoint; returns the state then.
absl::StatusOr<train::testing::WholeBits> TrainAndSave(
    const train::RunOptions& options, const std::string& directory) {
  train::testing::WholeState state;
  TESSERA_RETURN_IF_ERROR(
      train::testing::OnRanks(options, [&](TrainRank& rank) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto checkpoints,
            train::RunCheckpoints::Create(
                rank, {.directory = directory,
                       .identity = train::testing::IdentityOf(options)}));
        TESSERA_RETURN_IF_ERROR(train::testing::TrainTo(rank, 2).status());
        TESSERA_RETURN_IF_ERROR(state.Add(rank));
        TESSERA_RETURN_IF_ERROR(checkpoints->Start());
        return checkpoints->Wait().status();
      }));
  return state.bits();
}

struct Beginning {
  train::testing::WholeBits bits;  // Before the first step.
  std::vector<double> losses;      // Of the first steps.
};

// Begins to train, from a checkpoint at step 0 if `checkpoint` is not empty.
absl::StatusOr<Beginning> BeginWith(const train::RunOptions& options,
                                    const std::string& checkpoint) {
  Beginning beginning;
  train::testing::WholeState state;
  TESSERA_RETURN_IF_ERROR(
      train::testing::OnRanks(options, [&](TrainRank& rank) -> absl::Status {
        if (!checkpoint.empty()) {
          TESSERA_RETURN_IF_ERROR(train::RestoreRun(
              checkpoint, train::testing::IdentityOf(options), rank));
        }
        EXPECT_EQ(rank.steps(), 0);
        EXPECT_EQ(rank.state().steps(), 0);
        TESSERA_RETURN_IF_ERROR(state.Add(rank));
        TESSERA_ASSIGN_OR_RETURN(const std::vector<double> losses,
                                 train::testing::TrainTo(rank, 2));
        if (rank.world().rank() == collectives::Rank(0)) {
          beginning.losses = losses;
        }
        return absl::OkStatus();
      }));
  TESSERA_ASSIGN_OR_RETURN(beginning.bits, state.bits());
  return beginning;
}

void ExpectWeightsWithoutMoments(const train::testing::WholeBits& before,
                                 const train::testing::WholeBits& after) {
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [key, bits] : before) {
    if (key.second == zero3::StatePart::kMaster ||
        key.second == zero3::StatePart::kValue) {
      EXPECT_EQ(after.at(key), bits) << key.first;
    } else {
      EXPECT_THAT(after.at(key), ::testing::Each(0u)) << key.first;
    }
  }
}

TEST(ExportModelTest, RoundTripsMixturesOnOtherMeshes) {
  train::RunOptions options = train::testing::SmallMixture();
  options.mesh = {.dp = 2, .pp = 2, .ep = 2};
  const std::string directory = NewRunDirectory("mixture");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto trained,
                               TrainAndSave(options, directory + "/ckpt"));
  TESSERA_ASSERT_OK(ExportModel(directory + "/ckpt", directory + "/hf", {}));
  for (const train::MeshSizes& mesh :
       {train::MeshSizes{.dp = 4, .tp = 2, .ep = 4}, train::MeshSizes{}}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::string imported,
        ImportModel(directory + "/hf",
                    absl::StrCat(directory, "/", mesh.ToFlag()),
                    {.mesh = mesh}));
    options.mesh = mesh;
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto resumed,
                                 BeginWith(options, imported));
    ExpectWeightsWithoutMoments(trained, resumed.bits);
    const std::string again = absl::StrCat(directory, "/again", mesh.ToFlag());
    TESSERA_ASSERT_OK(ExportModel(imported, again, {}));
    ExpectSameTensors(directory + "/hf", again);
  }
}

void ExpectSameWeights(const std::string& expected, const std::string& found) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceWeights a,
                               HuggingFaceWeights::Open(expected));
  TESSERA_ASSERT_OK_AND_ASSIGN(const HuggingFaceWeights b,
                               HuggingFaceWeights::Open(found));
  for (const LlamaParameter& parameter :
       model_files::LlamaParameters(a.config().model)) {
    const int64_t width = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
    std::vector<float> rows[2];
    for (const bool second : {false, true}) {
      rows[second].resize(static_cast<size_t>(parameter.shape[0] * width));
      TESSERA_ASSERT_OK((second ? b : a)
                            .Read(parameter.part, parameter.layer, 0,
                                  parameter.shape[0], rows[second]));
    }
    EXPECT_EQ(rows[0], rows[1]) << parameter.name;
  }
}

// A mixture with everything that GPT-OSS has.
train::RunOptions SmallGptOss() {
  train::RunOptions options = train::testing::SmallRun();
  options.model.architecture = model_files::Architecture::kGptOss;
  options.model.qkv_bias = options.model.output_bias = true;
  options.model.window = 5;
  options.model.full_layers = {1, 3};
  options.model.intermediate = 5;
  options.model.mixture = {.experts = 8, .per_token = 2, .intermediate = 5};
  return options;
}

TEST(ExportModelTest, RoundTripsGptOssOverMeshes) {
  train::RunOptions options = SmallGptOss();
  options.mesh = {.dp = 2, .tp = 2, .ep = 2};
  const std::string directory = NewRunDirectory("gpt_oss");
  TESSERA_ASSERT_OK(TrainAndSave(options, directory + "/ckpt").status());
  TESSERA_ASSERT_OK(ExportModel(directory + "/ckpt", directory + "/hf", {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(directory + "/hf", directory + "/imported",
                  {.mesh = {.dp = 2, .pp = 2, .tp = 2, .ep = 2}, .zero = 1}));
  for (const WeightFiles files : {WeightFiles::kSafetensors, WeightFiles::kDcp,
                                  WeightFiles::kTorchDist}) {
    const std::string to =
        absl::StrCat(directory, "/", static_cast<int>(files));
    TESSERA_ASSERT_OK(
        ExportModel(path, to, {.files = files, .max_shard_bytes = 5000}));
    ExpectSameWeights(directory + "/hf", to);
  }
}

class TorchFilesTest : public testing::TestWithParam<WeightFiles> {};

TEST_P(TorchFilesTest, RoundTripBitForBit) {
  const std::string directory = NewRunDirectory("torch");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(kModel, directory + "/ckpt",
                  {.mesh = {.dp = 3, .pp = 2, .tp = 4}, .zero = 1}));
  const std::string to = directory + "/export";
  TESSERA_ASSERT_OK(
      ExportModel(path, to, {.files = GetParam(), .max_shard_bytes = 5000}));
  EXPECT_TRUE(fs::exists(to + "/__0_1.distcp"));
  EXPECT_EQ(fs::exists(to + "/common.pt"),
            GetParam() == WeightFiles::kTorchDist);
  ExpectSameWeights(kModel, to);
}

// Mixtures in all layers and after a dense one, with shared experts and biases
// of the choice, with and without latent attention.
TEST_P(TorchFilesTest, RoundTripsMixtures) {
  train::RunOptions plain = train::testing::SmallMixture();
  plain.model.mixture.dense_layers = 0;
  plain.model.mixture.shared_intermediate = 0;
  plain.router_bias_rate = 0;
  plain.model.architecture = model_files::Architecture::kQwen3Moe;
  int count = 0;
  for (const train::RunOptions& options :
       {plain, train::testing::SmallMixture(),
        train::testing::SmallDeepSeek(/*has_query_latent=*/false),
        train::testing::SmallDeepSeek(/*has_query_latent=*/true)}) {
    SCOPED_TRACE(++count);
    const std::string directory = NewRunDirectory("torch_mixture");
    TESSERA_ASSERT_OK(TrainAndSave(options, directory + "/ckpt").status());
    TESSERA_ASSERT_OK(ExportModel(directory + "/ckpt", directory + "/hf", {}));
    const std::string to = directory + "/export";
    TESSERA_ASSERT_OK(
        ExportModel(directory + "/ckpt", to, {.files = GetParam()}));
    ExpectSameWeights(directory + "/hf", to);
  }
}

TEST(ExportModelTest, RejectsMegatronFilesForOtherModels) {
  const std::string directory = NewRunDirectory("other");
  train::RunOptions norms = train::testing::SmallRun();
  norms.model.architecture = model_files::Architecture::kOlmo2;
  train::RunOptions halves = train::testing::SmallDeepSeek(true);
  halves.model.latent.interleaved = false;
  for (const auto& [options, reason] :
       {std::pair(norms, "OLMo 2 models with norms of outputs have no"),
        std::pair(halves, "latent attention without rope_interleave")}) {
    fs::remove_all(directory + "/ckpt");
    TESSERA_ASSERT_OK(TrainAndSave(options, directory + "/ckpt").status());
    EXPECT_THAT(
        ExportModel(directory + "/ckpt", directory + "/export",
                    {.files = WeightFiles::kTorchDist}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(reason)));
    EXPECT_FALSE(fs::exists(directory + "/export"));
    EXPECT_FALSE(fs::exists(directory + "/export.writing"));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, TorchFilesTest,
                         testing::Values(WeightFiles::kDcp,
                                         WeightFiles::kTorchDist));

// Runs begin with the files of a model as with its import, in every bit.
void ExpectBeginsLikeImport(train::RunOptions options, const std::string& model,
                            const std::string& import_to) {
  SCOPED_TRACE(absl::StrCat(options.mesh.ToFlag(), ", zero ",
                            options.state.stage, ", lora ", options.lora.rank,
                            ", ", DTypeName(options.dtype)));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string imported,
      ImportModel(model, import_to,
                  {.mesh = options.mesh, .dtype = options.dtype}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Beginning resumed,
                               BeginWith(options, imported));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                               train::ImportedWeights::Open(model));
  options.first_weights = [&](const tp::Parameter& parameter, int64_t begin,
                              TensorView elements) {
    return weights.Fill(parameter, begin, elements);
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(const Beginning begun, BeginWith(options, ""));
  EXPECT_EQ(begun.bits, resumed.bits);
  EXPECT_EQ(begun.losses, resumed.losses);
}

TEST(ImportedWeightsTest, BeginLikeAnImportOnEveryMesh) {
  for (train::RunOptions options :
       {train::testing::SmallRun(), train::testing::SmallMixture(),
        SmallGptOss()}) {
    const bool is_mixture = options.model.mixture.experts > 0;
    const std::string directory = NewRunDirectory("begins");
    ASSERT_THAT(TrainAndSave(options, directory + "/ckpt"), IsOk());
    TESSERA_ASSERT_OK(ExportModel(directory + "/ckpt", directory + "/hf", {}));
    int64_t count = 0;
    for (train::MeshSizes mesh :
         {train::MeshSizes{}, train::MeshSizes{.dp = 2, .tp = 2},
          train::MeshSizes{.pp = 2}, train::MeshSizes{.dp = 2, .cp = 2}}) {
      if (is_mixture && mesh.dp == 2) mesh.ep = 2;
      options.mesh = mesh;
      options.state.stage = static_cast<int>(count % 4);
      options.dtype = count % 2 == 0 ? DType::kF32 : DType::kBF16;
      options.lora.rank = count == 3 ? 3 : 0;
      ExpectBeginsLikeImport(options, directory + "/hf",
                             absl::StrCat(directory, "/", count++));
    }
  }
}

TEST(ImportedWeightsTest, RejectsUnknownTensorsAndTypes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto weights,
                               train::ImportedWeights::Open(kModel));
  EXPECT_EQ(weights.dtype(), DType::kF32);
  std::vector<float> element(1);
  EXPECT_THAT(weights.Read(train::WholeTensor("layers.9.mlp_norm.weight", {8}),
                           0, element),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no tensor \"layers.9.mlp_norm.weight\"")));
}

TEST(ExportModelTest, WritesTheBestCheckpointBesideTheLast) {
  const std::string directory = NewRunDirectory("best");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                               ImportModel(kModel, directory + "/ckpt", {}));
  TESSERA_ASSERT_OK(
      ExportModel(path, directory + "/new/parents/model", {.best = path}));
  ExpectSameTensors(kModel, directory + "/new/parents/model");
  ExpectSameTensors(kModel, directory + "/new/parents/model/best");
  // Neither is written if one cannot be.
  EXPECT_THAT(
      ExportModel(path, directory + "/none", {.best = directory + "/missing"}),
      Not(IsOk()));
  EXPECT_FALSE(fs::exists(directory + "/none"));
}

TEST(CheckExportTargetTest, RejectsUsedAndImpossibleDirectories) {
  const std::string directory = NewRunDirectory("targets");
  TESSERA_EXPECT_OK(CheckExportTarget(directory));
  TESSERA_EXPECT_OK(CheckExportTarget(directory + "/"));
  TESSERA_EXPECT_OK(CheckExportTarget(directory + "/new/model"));
  TESSERA_ASSERT_OK(WriteFile(directory + "/file", "x"));
  EXPECT_THAT(CheckExportTarget(directory),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("is not an empty directory")));
  EXPECT_THAT(CheckExportTarget(directory + "/file/model"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot be made in ")));
}

// Gemma's files store the weights of norms minus 1.
TEST(ExportModelTest, ShiftsGemmaNormsByOne) {
  train::RunOptions options = train::testing::SmallRun();
  options.model.architecture = model_files::Architecture::kGemma;
  options.model.tied_embeddings = true;
  options.mesh = {.dp = 2, .tp = 2};
  const std::string directory = NewRunDirectory("gemma");
  TESSERA_ASSERT_OK(TrainAndSave(options, directory + "/ckpt").status());
  TESSERA_ASSERT_OK(ExportModel(directory + "/ckpt", directory + "/hf", {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(directory + "/hf", directory + "/imported",
                  {.mesh = {.pp = 2, .tp = 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto trained,
                               ModelReader::Open(directory + "/ckpt"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto imported, ModelReader::Open(path));
  EXPECT_EQ(imported->config(), options.model);
  TESSERA_ASSERT_OK_AND_ASSIGN(const SafetensorsSet files,
                               SafetensorsSet::Open(directory + "/hf"));
  for (const LlamaParameter& parameter :
       model_files::LlamaParameters(options.model)) {
    const bool is_norm = parameter.shape.size() == 1;
    int64_t row = 0;
    for (const model_files::HuggingFacePiece& piece : parameter.pieces) {
      const int64_t width = is_norm ? 1 : parameter.shape[1];
      std::vector<float> stored(static_cast<size_t>(piece.rows * width));
      std::vector<float> before(stored), after(stored);
      TESSERA_ASSERT_OK(
          files.Read(piece.name, std::as_writable_bytes(std::span(stored))));
      TESSERA_ASSERT_OK(trained->Read(parameter.part, parameter.layer, row,
                                      row + piece.rows, before));
      TESSERA_ASSERT_OK(imported->Read(parameter.part, parameter.layer, row,
                                       row + piece.rows, after));
      row += piece.rows;
      for (size_t i = 0; i < stored.size(); ++i) {
        const float moved = is_norm ? before[i] - 1 : before[i];
        ASSERT_EQ(stored[i], moved) << piece.name;
        ASSERT_EQ(after[i], is_norm ? moved + 1 : moved) << piece.name;
      }
      EXPECT_TRUE(!is_norm || before != std::vector<float>(before.size(), 1));
    }
  }
}

class SixteenBitTiedModelTest : public ::testing::TestWithParam<DType> {
 protected:
  SixteenBitTiedModelTest() {
    options_.mesh = {.pp = 2, .tp = 2};
    options_.dtype = GetParam();
    options_.model.tied_embeddings = true;
    options_.state.stage = 1;
  }

  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(trained_,
                                 TrainAndSave(options_, directory_ + "/ckpt"));
    TESSERA_ASSERT_OK(
        ExportModel(directory_ + "/ckpt", directory_ + "/f32", {}));
    TESSERA_ASSERT_OK(ExportModel(directory_ + "/ckpt", directory_ + "/16",
                                  {.dtype = GetParam()}));
  }

  train::RunOptions options_ = train::testing::SmallRun();
  const std::string directory_ = NewRunDirectory("masters");
  train::testing::WholeBits trained_;
};

TEST_P(SixteenBitTiedModelTest, KeepsMastersInF32Files) {
  EXPECT_LT(fs::file_size(directory_ + "/16/model.safetensors"),
            fs::file_size(directory_ + "/f32/model.safetensors") * 3 / 5);
  // A run that resumes from the import has the exported values and masters, and
  // starts at step 0.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string imported,
      ImportModel(directory_ + "/f32", directory_ + "/imported",
                  {.mesh = {.dp = 2}, .dtype = GetParam()}));
  EXPECT_EQ(fs::path(imported).filename(), "step-00000000");
  options_.mesh = {.tp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto resumed,
                               BeginWith(options_, imported));
  ExpectWeightsWithoutMoments(trained_, resumed.bits);
}

TEST_P(SixteenBitTiedModelTest, RoundTripsSixteenBitFiles) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string rounded,
      ImportModel(directory_ + "/16", directory_ + "/rounded", {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reader, ModelReader::Open(rounded));
  EXPECT_EQ(reader->dtype(), GetParam());
  TESSERA_ASSERT_OK(
      ExportModel(rounded, directory_ + "/16_again", {.dtype = GetParam()}));
  ExpectSameTensors(directory_ + "/16", directory_ + "/16_again");
}

INSTANTIATE_TEST_SUITE_P(Types, SixteenBitTiedModelTest,
                         ::testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& type) {
                           return std::string(DTypeName(type.param));
                         });

// Whole f32 tensors of files, and of a run.
std::vector<float> TensorOf(const SafetensorsSet& set,
                            const std::string& name) {
  const model_files::StoredTensor* const tensor = set.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<float> values(
      static_cast<size_t>(*model_files::TensorBytes(*tensor)) / sizeof(float));
  EXPECT_THAT(set.Read(name, std::as_writable_bytes(std::span(values))),
              IsOk());
  return values;
}

// The weights of the exported model are the frozen weights plus alpha / rank
// times the product of the factors, which the adapter's file contains for each
// projection.
void ExpectAdapters(train::RunOptions options,
                    const std::vector<std::string>& targets) {
  options.mesh = {.dp = 2, .tp = 2};
  options.state.stage = 3;
  options.lora = {.rank = 3, .alpha = 12};
  const std::string directory = NewRunDirectory("adapter");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto trained,
                               TrainAndSave(options, directory + "/ckpt"));
  TESSERA_ASSERT_OK(ExportModel(directory + "/ckpt", directory + "/hf", {}));
  TESSERA_ASSERT_OK(ExportAdapter(directory + "/ckpt", directory + "/peft",
                                  "base/model", {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               SafetensorsSet::Open(directory + "/hf"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto adapter,
      SafetensorsSet::Open(directory + "/peft/adapter_model.safetensors"));
  int64_t changed = 0;
  for (const LlamaParameter& parameter :
       model_files::LlamaParameters(options.model)) {
    const bool is_of_experts =
        parameter.part == model_files::LlamaPart::kExpertsGateUp ||
        parameter.part == model_files::LlamaPart::kExpertsDown;
    if (is_of_experts || (!model_files::IsAttentionMatrix(parameter.part) &&
                          !model_files::IsMlpMatrix(parameter.part))) {
      continue;
    }
    const auto bits = trained.at({parameter.name, zero3::StatePart::kValue});
    std::vector<float> frozen(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      frozen[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]));
    }
    for (const model_files::HuggingFacePiece& piece : parameter.pieces) {
      const std::string module =
          "base_model.model." + piece.name.substr(0, piece.name.size() - 7);
      const auto a = TensorOf(adapter, module + ".lora_A.weight");
      const auto b = TensorOf(adapter, module + ".lora_B.weight");
      const auto merged = TensorOf(model, piece.name);
      const auto width = static_cast<size_t>(parameter.shape[1]);
      ASSERT_EQ(a.size(), 3 * width);
      ASSERT_EQ(b.size(), 3 * static_cast<size_t>(piece.rows));
      for (size_t i = 0; i < merged.size(); ++i) {
        double sum = 0;
        for (size_t k = 0; k < 3; ++k) {
          sum += double{b[i / width * 3 + k]} * a[k * width + i % width];
        }
        const float before =
            frozen[static_cast<size_t>(piece.target_row) * width + i];
        ASSERT_NEAR(merged[i], before + 4 * sum, 1e-6) << piece.name << i;
        if (merged[i] != before) ++changed;
      }
    }
  }
  EXPECT_GT(changed, 100);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string json,
      ReadFile(directory + "/peft/adapter_config.json", 1 << 20));
  const auto config = nlohmann::json::parse(json);
  EXPECT_EQ(config["r"], 3);
  EXPECT_EQ(config["lora_alpha"], 12);
  EXPECT_EQ(config["base_model_name_or_path"], "base/model");
  EXPECT_EQ(config["target_modules"], nlohmann::json(targets));
}

TEST(ExportAdapterTest, FilesHaveTheFactorsAndTheirSum) {
  ExpectAdapters(train::testing::SmallRun(),
                 {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                  "up_proj", "down_proj"});
}

// Both projections to latent vectors have a factor lora_A of their own.
TEST(ExportAdapterTest, LatentAttentionHasAnAdapterForEachProjection) {
  ExpectAdapters(train::testing::SmallDeepSeek(/*has_query_latent=*/false),
                 {"kv_a_proj_with_mqa", "q_proj", "kv_b_proj", "o_proj"});
  ExpectAdapters(
      train::testing::SmallDeepSeek(/*has_query_latent=*/true),
      {"q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj"});
}

// PEFT adapts the experts of a layer as one parameter, [experts, out, in] or of
// GPT-OSS [experts, in, out], whose lora_B has the experts of each rank side by
// side. The rows of GPT-OSS's gates and ups alternate.
void ExpectStackedAdapters(train::RunOptions options) {
  constexpr size_t kRank = 3;
  options.mesh = {.dp = 2, .tp = 2, .ep = 2};
  options.state.stage = 3;
  options.lora = {.rank = kRank, .alpha = 12};
  const std::string directory = NewRunDirectory("expert_adapter");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto trained,
                               TrainAndSave(options, directory + "/ckpt"));
  TESSERA_ASSERT_OK(ExportModel(directory + "/ckpt", directory + "/hf", {}));
  TESSERA_ASSERT_OK(ExportAdapter(directory + "/ckpt", directory + "/peft",
                                  "base/model", {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model,
                               SafetensorsSet::Open(directory + "/hf"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto adapter,
      SafetensorsSet::Open(directory + "/peft/adapter_model.safetensors"));
  const auto experts = static_cast<size_t>(options.model.mixture.experts);
  int64_t changed = 0;
  for (const LlamaParameter& parameter :
       model_files::LlamaParameters(options.model)) {
    const bool is_down = parameter.part == model_files::LlamaPart::kExpertsDown;
    if (!is_down && parameter.part != model_files::LlamaPart::kExpertsGateUp) {
      continue;
    }
    const auto bits = trained.at({parameter.name, zero3::StatePart::kValue});
    const std::string module =
        absl::StrCat("base_model.model.model.layers.", parameter.layer,
                     ".mlp.experts.", is_down ? "" : "base_layer.");
    const auto a = TensorOf(adapter, module + "lora_A.weight");
    const auto b = TensorOf(adapter, module + "lora_B.weight");
    const auto width = static_cast<size_t>(parameter.shape[1]);
    const size_t rows = static_cast<size_t>(parameter.shape[0]) / experts;
    const bool alternates = parameter.stack && parameter.stack->alternates;
    ASSERT_EQ(a.size(), experts * kRank * width);
    ASSERT_EQ(b.size(), rows * kRank * experts);
    for (const model_files::HuggingFacePiece& piece : parameter.pieces) {
      const auto merged = TensorOf(model, piece.name);
      for (size_t i = 0; i < merged.size(); ++i) {
        const size_t at = static_cast<size_t>(piece.target_row) * width + i;
        const size_t expert = at / width / rows, column = at % width;
        size_t row = at / width % rows;
        if (alternates) row = row % (rows / 2) * 2 + row / (rows / 2);
        double sum = 0;
        for (size_t k = 0; k < kRank; ++k) {
          sum += double{b[(row * kRank + k) * experts + expert]} *
                 a[(expert * kRank + k) * width + column];
        }
        const float before =
            std::bit_cast<float>(static_cast<uint32_t>(bits[at]));
        const float after =
            merged[parameter.stack ? (expert * width + column) * rows + row
                                   : i];
        ASSERT_NEAR(after, before + 4 * sum, 1e-6) << piece.name << i;
        if (after != before) ++changed;
      }
    }
  }
  EXPECT_GT(changed, 100);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string json,
      ReadFile(directory + "/peft/adapter_config.json", 1 << 20));
  const auto config = nlohmann::json::parse(json);
  EXPECT_EQ(config["target_modules"].size(), 4);
  EXPECT_EQ(config["target_parameters"][0], "mlp.experts.gate_up_proj");
  EXPECT_EQ(config["target_parameters"][1], "mlp.experts.down_proj");
}

TEST(ExportAdapterTest, ExpertsAreStackedParameters) {
  ExpectStackedAdapters(train::testing::SmallMixture());
}

TEST(ExportAdapterTest, GatesAndUpsOfGptOssAlternate) {
  train::RunOptions options = train::testing::SmallMixture();
  model_files::ModelConfig& model = options.model;
  model.architecture = model_files::Architecture::kGptOss;
  model.qkv_bias = model.output_bias = true;
  model.mixture = {.experts = 8, .per_token = 2, .intermediate = 5};
  options.router_bias_rate = 0;
  ExpectStackedAdapters(options);
}

TEST(ExportAdapterTest, RejectsRunsWithoutAdapters) {
  const std::string directory = NewRunDirectory("no_adapter");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                               ImportModel(kModel, directory + "/ckpt", {}));
  EXPECT_THAT(ExportAdapter(path, directory + "/peft", "", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("has no LoRA adapters")));
  EXPECT_FALSE(fs::exists(directory + "/peft"));
}

TEST(ModelReaderTest, RejectsInvalidRows) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path, ImportModel(kModel, NewRunDirectory("rows"), {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto reader, ModelReader::Open(path));
  using model_files::LlamaPart;
  std::vector<float> row(8);
  TESSERA_EXPECT_OK(reader->Read(LlamaPart::kHead, -1, 30, 31, row));
  TESSERA_EXPECT_OK(reader->Read(LlamaPart::kFinalNorm, -1, 0, 8, row));
  TESSERA_EXPECT_OK(reader->Read(LlamaPart::kQkv, 1, 16, 16, {}));
  for (const auto& [layer, begin, end] :
       std::vector<std::array<int64_t, 3>>{{0, -1, 0},
                                           {0, 15, 17},
                                           {0, 2, 1},
                                           {0, 0, 2},
                                           {2, 0, 1},
                                           {-1, 0, 1}}) {
    EXPECT_THAT(reader->Read(LlamaPart::kQkv, layer, begin, end, row),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

class BadModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = NewRunDirectory("bad");
    fs::copy(kModel, directory_ + "/model");
    for (const auto& entry : fs::directory_iterator(directory_ + "/model")) {
      fs::permissions(entry.path(), fs::perms::owner_all);
    }
  }

  void ExpectRefused(absl::StatusCode code, const std::string& message) {
    EXPECT_THAT(ImportModel(directory_ + "/model", directory_ + "/to", {}),
                StatusIs(code, HasSubstr(message)));
    EXPECT_FALSE(fs::exists(directory_ + "/to/step-00000000"));
  }

  std::string directory_;
};

TEST_F(BadModelTest, NamesMissingAndDamagedFiles) {
  const std::string file =
      directory_ + "/model/model-00002-of-00002.safetensors";
  {
    std::fstream stream(file, std::ios::in | std::ios::out);
    stream.seekp(9);
    stream.put('#');
  }
  ExpectRefused(absl::StatusCode::kDataLoss, "model-00002-of-00002");
  fs::resize_file(file, 5);
  ExpectRefused(absl::StatusCode::kDataLoss, "model-00002-of-00002");
  fs::remove(file);
  ExpectRefused(absl::StatusCode::kNotFound, "model-00002-of-00002");
  std::ofstream(directory_ + "/model/config.json") << "{";
  ExpectRefused(absl::StatusCode::kDataLoss, "config.json");
}

TEST_F(BadModelTest, NamesMissingAndMisshapenTensors) {
  const std::string path = directory_ + "/model/config.json";
  TESSERA_ASSERT_OK_AND_ASSIGN(auto config,
                               model_files::LoadHuggingFaceConfig(path));
  config.model.layers = 3;
  TESSERA_ASSERT_OK(model_files::SaveHuggingFaceConfig(config, path));
  ExpectRefused(absl::StatusCode::kNotFound, "model.layers.2.input_layernorm");
  config.model.layers = 2;
  config.model.vocabulary = 32;
  TESSERA_ASSERT_OK(model_files::SaveHuggingFaceConfig(config, path));
  ExpectRefused(absl::StatusCode::kDataLoss,
                "\"model.embed_tokens.weight\" is [31, 8]; its config.json "
                "needs [32, 8]");
}

TEST_F(BadModelTest, FailedExportsLeaveNoFiles) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(directory_ + "/model", directory_ + "/ckpt", {}));
  const std::string to = directory_ + "/export";
  EXPECT_THAT(ExportModel(path, directory_ + "/model", {}),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("not an empty directory")));
  EXPECT_THAT(ExportModel(path, to, {.dtype = DType::kF64}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ExportModel(path, to, {.max_shard_bytes = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ExportModel(path, to, {.tokenizer = directory_ + "/model"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tokenizer")));
  EXPECT_THAT(ExportModel(path, directory_ + "/model/config.json/export", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot be made in ")));
  {
    std::fstream stream(path + "/tp0-pp0.rank-00000.state",
                        std::ios::in | std::ios::out);
    stream.seekp(40);
    stream.put('#');
  }
  EXPECT_THAT(ExportModel(path, to, {}),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("tp0-pp0.rank-00000.state")));
  EXPECT_FALSE(fs::exists(to));
  EXPECT_FALSE(fs::exists(to + ".writing"));
}

TEST_F(BadModelTest, RestartsInterruptedExport) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(directory_ + "/model", directory_ + "/ckpt", {}));
  const std::string to = directory_ + "/export/";
  fs::create_directory(directory_ + "/export.writing");
  std::ofstream(directory_ + "/export.writing/torn") << "x";
  std::ofstream(directory_ + "/tokenizer.json") << "{}";
  std::ofstream(directory_ + "/merges.txt") << "a b";
  TESSERA_ASSERT_OK(ExportModel(path, to, {.tokenizer = directory_}));
  EXPECT_FALSE(fs::exists(to + "torn"));
  EXPECT_TRUE(fs::exists(to + "tokenizer.json"));
  EXPECT_TRUE(fs::exists(to + "merges.txt"));
  EXPECT_FALSE(fs::exists(to + "tokenizer.model"));
  EXPECT_FALSE(fs::exists(directory_ + "/export.writing"));
  ExpectSameTensors(kModel, directory_ + "/export");
}

// Import, resharding and export keep what they do not compute.
TEST_F(BadModelTest, KeepsIdsConfigsTemplatesAndTokenizerFiles) {
  const std::string model = directory_ + "/model";
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               ReadFile(model + "/config.json", 1 << 20));
  auto config = nlohmann::json::parse(text);
  config["bos_token_id"] = 1;
  config["eos_token_id"] = {2, 5};
  config["pad_token_id"] = 0;
  config["architectures_of_others"] = {{"a", 1}};
  TESSERA_ASSERT_OK(WriteFile(model + "/config.json", config.dump()));
  const std::string generation = R"({"eos_token_id": [2, 5], "top_k": 7})";
  TESSERA_ASSERT_OK(WriteFile(model + "/generation_config.json", generation));
  const std::string tokenizer = directory_ + "/tokenizer";
  fs::create_directories(tokenizer + "/additional_chat_templates");
  const std::vector<std::string> copied = {
      "tokenizer.json",
      "tokenizer_config.json",
      "tokenizer.model.v3",
      "spiece.model",
      "vocab.json",
      "vocab.txt",
      "merges.txt",
      "special_tokens_map.json",
      "added_tokens.json",
      "chat_template.jinja",
      "chat_template.json",
      "preprocessor_config.json",
      "processor_config.json",
      "cl100k.tiktoken",
      "additional_chat_templates/tool_use.jinja"};
  for (const std::string& name : copied) {
    TESSERA_ASSERT_OK(WriteFile(tokenizer + "/" + name, name));
  }
  // Hubs link files to their contents.
  fs::rename(tokenizer + "/vocab.txt", directory_ + "/blob");
  fs::create_symlink("../blob", tokenizer + "/vocab.txt");
  for (const char* name : {"config.json", "generation_config.json",
                           "pytorch_model.bin", "notes"}) {
    TESSERA_ASSERT_OK(WriteFile(tokenizer + "/" + name, "other"));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(model, directory_ + "/ckpt", {.mesh = {.tp = 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string resharded,
      ReshardRun(path, directory_ + "/resharded", {.mesh = {.pp = 2}}));
  const std::string to = directory_ + "/kept";
  TESSERA_ASSERT_OK(ExportModel(resharded, to, {.tokenizer = tokenizer}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string written,
                               ReadFile(to + "/config.json", 1 << 20));
  const auto exported = nlohmann::json::parse(written);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id",
                          "architectures_of_others", "rms_norm_eps"}) {
    EXPECT_EQ(exported[key], config[key]) << key;
  }
  EXPECT_THAT(ReadFile(to + "/generation_config.json", 1 << 20),
              IsOkAndHolds(generation));
  for (const std::string& name : copied) {
    EXPECT_THAT(ReadFile(to + "/" + name, 1 << 20), IsOkAndHolds(name));
  }
  EXPECT_FALSE(fs::exists(to + "/pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(to + "/notes"));
  // A second round trip changes nothing.
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string again,
                               ImportModel(to, directory_ + "/again", {}));
  TESSERA_ASSERT_OK(ExportModel(again, directory_ + "/second", {}));
  EXPECT_THAT(ReadFile(directory_ + "/second/config.json", 1 << 20),
              IsOkAndHolds(written));
}

TEST_F(BadModelTest, AnExportMayHaveATokenizerModelAlone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      ImportModel(directory_ + "/model", directory_ + "/ckpt", {}));
  std::ofstream(directory_ + "/tokenizer.model") << "m";
  const std::string to = directory_ + "/export";
  TESSERA_ASSERT_OK(ExportModel(path, to, {.tokenizer = directory_}));
  EXPECT_TRUE(fs::exists(to + "/tokenizer.model"));
  EXPECT_FALSE(fs::exists(to + "/tokenizer.json"));
}

}  // namespace

}  // namespace tessera::tools
