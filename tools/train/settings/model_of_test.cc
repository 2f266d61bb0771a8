#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/settings/run_options_from.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

auto Refused(const std::string& beginning) {
  return StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(beginning));
}

TEST(ModelOfTest, PresetGrowsToTokensAndLength) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto preset,
                               model_files::PresetConfig("llama-1m"));
  EXPECT_THAT(ModelOf(Settings(), 257), IsOkAndHolds(preset));
  EXPECT_THAT(ModelOf(Settings(), 264), IsOkAndHolds(preset));
  Settings settings;
  settings.length = 5000;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto model, ModelOf(settings, 265));
  EXPECT_EQ(model.vocabulary, 272);
  EXPECT_EQ(model.max_positions, 5000);
  for (const std::string_view name : model_files::PresetNames()) {
    settings.model = std::string(name);
    TESSERA_EXPECT_OK(ModelOf(settings, 257)) << name;
  }
}

TEST(ModelOfTest, RejectsUnknownModels) {
  Settings settings;
  settings.model = "lama-1m";
  EXPECT_THAT(ModelOf(settings, 257),
              Refused("--model=lama-1m: is neither a preset nor a directory "
                      "with a config.json; presets are llama-1m, "));
  EXPECT_THAT(ModelOf(settings, 257).status().message(),
              HasSubstr("such as --model=llama-1m"));
  settings.model = "/does/not/exist";
  EXPECT_THAT(ModelOf(settings, 257), Refused("--model=/does/not/exist: "));
}

TEST(ModelOfTest, RejectsClippedScoresOfNormalisedHeads) {
  Settings settings;
  settings.qk_clip = 100;
  TESSERA_EXPECT_OK(ModelOf(settings, 257));
  settings.model = "qwen3-30b-a3b";
  EXPECT_THAT(
      ModelOf(settings, 257),
      Refused("--qk_clip=100: has no meaning for --model=qwen3-30b-a3b, "
              "whose norms of queries and keys undo a scale of their "
              "weights; use --qk_clip=0"));
}

TEST(ModelOfTest, RejectsIncompatibleMeshes) {
  Settings settings;  // Default: 4 layers, 4 heads, 2 kv heads.
  for (const char* mesh : {"tp1", "tp2", "tp4", "tp8", "pp4"}) {
    settings.parallel.mesh = *topology::MeshSizes::Parse(mesh);
    TESSERA_EXPECT_OK(ModelOf(settings, 257)) << mesh;
  }
  settings.parallel.mesh = {.tp = 3};
  EXPECT_THAT(
      ModelOf(settings, 257),
      Refused(
          "--mesh=tp3: tp 3 cannot divide the 2 kv heads of --model=llama-1m; "
          "tp may be up to 2, or a multiple of it, such as tp2"));
  settings.parallel.mesh = {.pp = 5};
  EXPECT_THAT(
      ModelOf(settings, 257),
      Refused("--mesh=pp5: pp 5 x chunks 1 are 5 stages, and the model has 4 "
              "layers; give at most as many stages, such as --mesh=pp4"));
  settings.parallel.mesh = {.pp = 2};
  settings.parallel.chunks = 5;
  EXPECT_THAT(ModelOf(settings, 257), Refused("--mesh=pp2: pp 2 x chunks 5"));
}

TEST(ModelOfTest, TensorRanksMayHaveNoHeadsOfLatentAttention) {
  Settings settings;
  settings.model = "deepseek-v2-lite";
  settings.parallel.mesh = {.tp = 32};
  TESSERA_EXPECT_OK(ModelOf(settings, 257));
}

TEST(ModelOfTest, ContextRanksMayShareHeadsUnevenly) {
  Settings settings;  // 4 heads, 2 kv heads.
  settings.context_attention = "ulysses";
  for (const int64_t cp : {2, 3, 4, 8}) {
    settings.parallel.mesh = {.cp = cp, .tp = 2};
    TESSERA_EXPECT_OK(ModelOf(settings, 257));
  }
}

class ModelDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/model", getpid());
    std::filesystem::create_directories(directory_);
    config_.model = *model_files::PresetConfig("llama-1m");
    config_.model.vocabulary = 300;
    config_.model.max_positions = 200;
    TESSERA_ASSERT_OK(model_files::SaveHuggingFaceConfig(
        config_, directory_ + "/config.json"));
    settings_.model = directory_;
  }

  std::string directory_;
  model_files::HuggingFaceConfig config_;
  Settings settings_;
};

TEST_F(ModelDirectoryTest, UsesConfigUnchanged) {
  EXPECT_THAT(ModelOf(settings_, 257), IsOkAndHolds(config_.model));
  EXPECT_THAT(ModelOf(settings_, 300), IsOkAndHolds(config_.model));
}

TEST_F(ModelDirectoryTest, RejectsTooManyTokensAndPositions) {
  EXPECT_THAT(ModelOf(settings_, 301).status().message(),
              HasSubstr("has a vocabulary of 300, and the tokenizer one of "
                        "301; give the model's own, such as --tokenizer="));
  settings_.length = 201;
  EXPECT_THAT(ModelOf(settings_, 257),
              Refused("--length=201: the model has 200 positions"));
}

TEST_F(ModelDirectoryTest, RejectsCapsOfClippedScores) {
  model_files::ModelConfig& model = config_.model;
  model.architecture = model_files::Architecture::kGemma2;
  model.score_scalar = 64;
  model.attention_cap = 50;
  model.final_cap = 30;
  TESSERA_ASSERT_OK(
      model_files::SaveHuggingFaceConfig(config_, directory_ + "/config.json"));
  TESSERA_EXPECT_OK(ModelOf(settings_, 257));
  settings_.qk_clip = 100;
  EXPECT_THAT(ModelOf(settings_, 257),
              Refused("--qk_clip=100: has no meaning for --model=" +
                      directory_.substr(0, 60)));
  EXPECT_THAT(ModelOf(settings_, 257).status().message(),
              HasSubstr("whose scores of attention have a cap; use "
                        "--qk_clip=0"));
}

TEST_F(ModelDirectoryTest, RejectsDirectoryWithoutAModel) {
  settings_.model = "/";
  EXPECT_THAT(ModelOf(settings_, 257), Refused("--model=/: "));
}

}  // namespace
}  // namespace tessera::train
