#include "tools/train/settings/run_options_from.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"

namespace tessera::train {
namespace {

// Settings without defaults.
Settings Unusual() {
  Settings settings;
  settings.parallel.mesh = {.dp = 2, .pp = 3, .cp = 4, .tp = 5};
  settings.parallel.dtype = DType::kBF16;
  settings.batch = 24;
  settings.parallel.micro_batch = 2;
  settings.length = 77;
  settings.steps = 100;
  settings.seed = 9;
  settings.learning_rate = 0.5;
  settings.min_learning_rate = 0.25;
  settings.warmup_steps = 6;
  settings.parallel.schedule = "interleaved_1f1b";
  settings.parallel.chunks = 2;
  settings.sequence_parallel = true;
  settings.overlap_chunks = 3;
  settings.context = "contiguous";
  settings.context_attention = "ulysses";
  settings.recompute = "selective";
  settings.zero = 1;
  settings.bucket_bytes = 1000;
  settings.moments = "int8";
  settings.weight_decay = 0.2;
  settings.decay = "all";
  settings.beta1 = 0.8;
  settings.beta2 = 0.7;
  settings.epsilon = 1e-4;
  settings.clip_norm = 3;
  settings.dropout = 0.2;
  settings.label_smoothing = 0.3;
  settings.lora_rank = 4;
  settings.lora_alpha = 10;
  settings.lora_targets = "mlp";
  settings.z_loss = 1e-4;
  settings.threads = 2;
  return settings;
}

class RunOptionsFromTest : public ::testing::Test {
 protected:
  const Settings settings_ = Unusual();
  const model_files::ModelConfig model_ =
      *model_files::PresetConfig("llama-10m");
};

TEST_F(RunOptionsFromTest, HasModelMeshAndBatch) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions options,
                               RunOptionsFrom(settings_, model_));
  EXPECT_EQ(options.mesh, settings_.parallel.mesh);
  EXPECT_EQ(options.model, model_);
  EXPECT_EQ(options.dtype, DType::kBF16);
  EXPECT_EQ(options.batch, 24);
  EXPECT_EQ(options.micro_batch, 2);
  EXPECT_EQ(options.length, 77);
  EXPECT_EQ(options.steps, 100);
  EXPECT_EQ(options.seed, 9u);
  EXPECT_EQ(options.schedule, "interleaved_1f1b");
  EXPECT_EQ(options.chunks, 2);
  EXPECT_TRUE(options.sequence_parallel);
  EXPECT_EQ(options.overlap_chunks, 3);
  EXPECT_FALSE(options.zigzag);
  EXPECT_EQ(options.context_attention,
            tensor_parallel::ContextAlgorithm::kUlysses);
  EXPECT_EQ(options.recompute, tensor_parallel::Recompute::kSelective);
}

TEST_F(RunOptionsFromTest, DividesTheLayersAsChosen) {
  Settings settings;
  settings.parallel.mesh = {.pp = 2};
  EXPECT_THAT(RunOptionsFrom(settings, model_)->layers_per_stage,
              ::testing::IsEmpty());
  const int64_t layers = model_.layers;
  settings.parallel.split.counts = {1, layers - 1};
  EXPECT_EQ(RunOptionsFrom(settings, model_)->layers_per_stage,
            settings.parallel.split.counts);
  settings.parallel.split.counts = {1, layers};
  EXPECT_THAT(RunOptionsFrom(settings, model_),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // The head of a large vocabulary costs as much as several layers.
  settings.parallel.split = {.by_cost = true};
  model_files::ModelConfig model = model_;
  model.vocabulary = 30 * model.intermediate;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions options,
                               RunOptionsFrom(settings, model));
  ASSERT_EQ(options.layers_per_stage.size(), 2u);
  EXPECT_EQ(options.layers_per_stage[0] + options.layers_per_stage[1], layers);
  EXPECT_GT(options.layers_per_stage[0], options.layers_per_stage[1]);
}

TEST_F(RunOptionsFromTest, HasTheOptimizerAndItsState) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions options,
                               RunOptionsFrom(settings_, model_));
  EXPECT_EQ(options.dropout, 0.2);
  EXPECT_EQ(options.label_smoothing, 0.3);
  EXPECT_EQ(options.lora.rank, 4);
  EXPECT_EQ(options.lora.alpha, 10);
  EXPECT_FALSE(options.lora_attention);
  EXPECT_TRUE(options.lora_mlp);
  EXPECT_EQ(options.z_loss, 1e-4);
  EXPECT_EQ(options.learning_rate.peak, 0.5);
  EXPECT_EQ(options.learning_rate.least, 0.25);
  EXPECT_EQ(options.learning_rate.warmup_steps, 6);
  EXPECT_EQ(options.learning_rate.total_steps, 100);
  EXPECT_EQ(options.state.stage, 1);
  EXPECT_EQ(options.state.bucket_bytes, 1000);
  EXPECT_EQ(options.state.moments, offload::MomentFormat::Blockwise8());
  EXPECT_EQ(options.state.clip_norm, 3);
  EXPECT_EQ(options.state.adamw.weight_decay, 0.2);
  EXPECT_EQ(options.state.decayed, zero3::DecayedParameters::kAll);
  EXPECT_EQ(RunOptionsFrom({}, model_)->state.decayed,
            zero3::DecayedParameters::kMatrices);
  EXPECT_EQ(options.state.adamw.beta1, 0.8);
  EXPECT_EQ(options.state.adamw.beta2, 0.7);
  EXPECT_EQ(options.state.adamw.epsilon, 1e-4);
  EXPECT_EQ(options.state.adamw.threads, 2);
  EXPECT_EQ(options.state.optimizer_tier, nullptr);
  EXPECT_EQ(options.state.optimizer, zero3::OptimizerKind::kAdamW);
}

TEST_F(RunOptionsFromTest, HasTheOptimizerAndItsMomentum) {
  Settings settings = settings_;
  settings.moments = "f32";
  settings.lora_rank = 0;
  settings.lora_alpha = Settings().lora_alpha;
  settings.lora_targets = "all";
  settings.momentum = 0.5;
  settings.qk_clip = 50;
  settings.optimizer = "muon";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions muon,
                               RunOptionsFrom(settings, model_));
  EXPECT_EQ(muon.state.optimizer, zero3::OptimizerKind::kMuon);
  EXPECT_EQ(muon.state.muon_momentum, 0.5);
  EXPECT_EQ(muon.qk_clip, 50);
  settings.optimizer = "sgd";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions sgd,
                               RunOptionsFrom(settings, model_));
  EXPECT_EQ(sgd.state.optimizer, zero3::OptimizerKind::kSgd);
  EXPECT_EQ(sgd.state.sgd.momentum, 0.5);
  EXPECT_EQ(sgd.state.sgd.weight_decay, 0.2);
  settings.momentum = Settings().momentum;
  settings.beta1 = Settings().beta1;
  settings.beta2 = Settings().beta2;
  settings.epsilon = Settings().epsilon;
  settings.optimizer = "adafactor";
  settings.beta2_decay = -0.5;
  settings.update_threshold = 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions adafactor,
                               RunOptionsFrom(settings, model_));
  EXPECT_EQ(adafactor.state.optimizer, zero3::OptimizerKind::kAdafactor);
  EXPECT_EQ(adafactor.state.adafactor.beta2_decay, -0.5);
  EXPECT_EQ(adafactor.state.adafactor.threshold, 2);
  settings.beta2_decay = Settings().beta2_decay;
  settings.update_threshold = Settings().update_threshold;
  settings.optimizer = "shampoo";
  settings.shampoo_block = 64;
  settings.shampoo_every = 3;
  settings.shampoo_epsilon = 1e-5;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions shampoo,
                               RunOptionsFrom(settings, model_));
  EXPECT_EQ(shampoo.state.optimizer, zero3::OptimizerKind::kShampoo);
  EXPECT_EQ(shampoo.state.shampoo.block, 64);
  EXPECT_EQ(shampoo.state.shampoo.every, 3);
  EXPECT_EQ(shampoo.state.shampoo.epsilon, 1e-5);
}

TEST_F(RunOptionsFromTest, HasLionAndParameterGroups) {
  Settings settings = settings_;
  settings.optimizer = "lion";
  settings.lora_rank = 0;
  settings.lora_alpha = Settings().lora_alpha;
  settings.lora_targets = "all";
  settings.param_groups = "*norm*:decay=0;layers.0.attention.*:lr=0.5";
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunOptions options,
                               RunOptionsFrom(settings, model_));
  EXPECT_EQ(options.state.optimizer, zero3::OptimizerKind::kLion);
  EXPECT_EQ(options.state.lion.beta2, 0.7);
  EXPECT_EQ(options.state.lion.weight_decay, 0.2);
  EXPECT_EQ(options.state.parameter_groups.size(), 2);
}

TEST_F(RunOptionsFromTest, HasTheScheduleOfTheLearningRate) {
  Settings settings = settings_;
  settings.lr_schedule = "wsd";
  TESSERA_ASSERT_OK_AND_ASSIGN(RunOptions options,
                               RunOptionsFrom(settings, model_));
  EXPECT_EQ(options.learning_rate.schedule, RateSchedule::kWsd);
  EXPECT_EQ(options.learning_rate.decay_steps, 10);
  settings.decay_steps = 70;
  // 24 sequences of 77 tokens a step.
  settings.warmup_tokens = 3 * 24 * 77 + 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(options, RunOptionsFrom(settings, model_));
  EXPECT_EQ(options.learning_rate.decay_steps, 70);
  EXPECT_EQ(options.learning_rate.warmup_steps, 4);
  EXPECT_EQ(RunOptionsFrom({}, model_)->learning_rate.schedule,
            RateSchedule::kCosine);
}

TEST_F(RunOptionsFromTest, HasTheFormatOfTheMoments) {
  Settings settings;
  const auto moments = [&](const char* name) {
    settings.moments = name;
    return RunOptionsFrom(settings, model_)->state.moments;
  };
  EXPECT_EQ(moments("f32"), offload::MomentFormat::F32());
  EXPECT_EQ(moments("bf16"), offload::MomentFormat::BF16());
}

TEST_F(RunOptionsFromTest, RejectsInvalidSettings) {
  Settings settings = settings_;
  settings.beta1 = 1;
  EXPECT_THAT(RunOptionsFrom(settings, model_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::StartsWith("--beta1=1")));
}

}  // namespace
}  // namespace tessera::train
