// Tests rollbacks after spikes of the loss: a stretch of the corpus is noise,
// which the model has never seen.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/loop/worker.h"
#include "tools/train/report/run_result.h"
#include "tools/train/testing/run_job.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kSteps = 18;
constexpr size_t kStepTokens = 8 * 16;  // Of SmallSettings.

// 18 steps, with a checkpoint every four, on `mesh`.
Settings SpikySettings(std::string_view mesh, std::string_view name) {
  Settings settings = SmallSettings();
  settings.parallel.mesh = *topology::MeshSizes::Parse(mesh);
  settings.zero = settings.parallel.mesh.dp > 1 ? 3 : 0;
  settings.steps = kSteps;
  settings.checkpoint_every = 4;
  settings.keep_checkpoints = 0;
  settings.spike_factor = 1.4;
  settings.spike_window = 4;
  settings.run_dir = absl::StrCat(::testing::TempDir(), "/", name);
  settings.metrics = settings.run_dir + "/metrics.jsonl";
  std::filesystem::remove_all(settings.run_dir);
  std::filesystem::create_directory(settings.run_dir);
  return settings;
}

// Short sentences, one byte a token, where each half of a step begins
// with a line feed.
std::string PlainText() {
  std::string text;
  for (size_t i = 0; text.size() < 30 * kStepTokens; ++i) {
    absl::StrAppend(&text, "the ", i * i % 97, " foxes jump over dog ", i,
                    ".\n");
  }
  for (size_t at = 0; at < text.size(); at += kStepTokens / 2) text[at] = '\n';
  return text;
}

// The same with `share` of the first `tokens` bytes of the samples of step
// `step` replaced.
std::string WithNoise(std::string text, size_t step, double share = 1,
                      size_t tokens = kStepTokens) {
  std::mt19937_64 random(step);
  std::bernoulli_distribution is_noise(share);
  for (size_t i = 1; i < tokens; ++i) {
    const char noise = static_cast<char>('!' + random() % 94);
    if (is_noise(random)) text[step * kStepTokens + i] = noise;
  }
  return text;
}

// In the order of the corpus.
TrainingData DataOf(const std::string& text, const Settings& settings) {
  TrainingData data;
  data.tokenizer = std::make_shared<text::ByteTokenizer>();
  const std::string texts[] = {text};
  data.samples =
      *text::Samples::Create(*text::Corpus::FromTexts(texts, *data.tokenizer),
                             {.sequence = settings.length, .shuffle = false});
  return data;
}

JobRun RunOn(
    const std::string& text, const Settings& settings,
    const std::function<void(int64_t, WorkerSinks&)>& change = nullptr) {
  const TrainingData data = DataOf(text, settings);
  return RunJob(settings, change, SmallModel(), &data);
}

// The files of a checkpoint without the manifest, whose metadata names the
// data.
std::vector<std::string> StateOf(const std::string& checkpoint) {
  std::vector<std::string> names, files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().filename() == "manifest.json") continue;
    names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    files.push_back(*ReadFile(name, 1 << 24));
  }
  return files;
}

// The losses of steps 12 and later.
std::vector<double> LossesFrom12(const JobRun& run) {
  const std::vector<double> losses = run.losses();
  return {losses.begin() + 12, losses.end()};
}

class RollbackTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Meshes, RollbackTest,
                         ::testing::Values("dp1", "dp2,pp2", "tp2"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, ',');
                           return name;
                         });

// Steps 8, 9 and 10 are left out, the noise of step 10 among them.
TEST_P(RollbackTest, MatchesRunWithoutSkippedSamples) {
  const std::string text = WithNoise(PlainText(), 10);
  Settings settings = SpikySettings(GetParam(), "spiky");
  const JobRun run = RunOn(text, settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  ASSERT_EQ(run.result.rollbacks.size(), 1u) << run.table;
  const Rollback& rollback = run.result.rollbacks[0];
  EXPECT_EQ(rollback.step, 10);
  EXPECT_EQ(rollback.to_step, 8);
  EXPECT_EQ(rollback.skipped_samples, 3 * 8);
  EXPECT_GT(rollback.loss, 1.4 * rollback.usual);
  EXPECT_THAT(run.table,
              AllOf(HasSubstr("train: step 10 (from 0): the loss "),
                    HasSubstr("rollback 1 of 3 to step 8, "),
                    HasSubstr("step-00000008; leaves out 24 samples")));

  std::string without = text;
  without.erase(8 * kStepTokens, 3 * kStepTokens);
  settings = SpikySettings(GetParam(), "without");
  const JobRun never = RunOn(without, settings);
  ASSERT_THAT(never.statuses, Each(IsOk()));
  EXPECT_THAT(never.result.rollbacks, IsEmpty());
  EXPECT_EQ(run.losses(), never.losses());
  EXPECT_EQ(StateOf(run.result.checkpoint), StateOf(never.result.checkpoint));
}

TEST_P(RollbackTest, AResumedRunSeesTheSameSamples) {
  const std::string text = WithNoise(PlainText(), 10);
  Settings settings = SpikySettings(GetParam(), "whole");
  const JobRun whole = RunOn(text, settings);
  ASSERT_THAT(whole.statuses, Each(IsOk()));
  settings = SpikySettings(GetParam(), "stopped");
  const JobRun stopped =
      RunOn(text, settings, [&](int64_t, WorkerSinks& sinks) {
        sinks.before_step = [&](int64_t step) {
          if (step < 14) return absl::OkStatus();
          // It is written in the background.
          while (!std::filesystem::exists(settings.run_dir +
                                          "/checkpoints/step-00000012")) {
            absl::SleepFor(absl::Milliseconds(5));
          }
          return absl::CancelledError("stop here");
        };
      });
  ASSERT_THAT(stopped.statuses, Each(Not(IsOk())));
  settings.resume = settings.run_dir + "/checkpoints/step-00000012";
  const std::vector<double> rest = LossesFrom12(whole);
  const JobRun resumed = RunOn(text, settings);
  ASSERT_THAT(resumed.statuses, Each(IsOk()));
  EXPECT_EQ(resumed.losses(), rest);
  EXPECT_EQ(resumed.result.steps.back().record.rollbacks, 1);

  settings.parallel.mesh = {.dp = 4};
  const JobRun elsewhere = RunOn(text, settings);
  ASSERT_THAT(elsewhere.statuses, Each(IsOk()));
  ASSERT_EQ(elsewhere.losses().size(), rest.size());
  for (size_t i = 0; i < rest.size(); ++i) {
    EXPECT_NEAR(elsewhere.losses()[i], rest[i], 1e-5 * rest[i]);
  }
}

// Steps 8, 9 and 10 have 4 samples each, those from 12 on have 8.
TEST(WorkerRollbackTest, LeavesOutTheSamplesOfSmallerBatchesToo) {
  const std::string text = WithNoise(PlainText(), 5, 1, kStepTokens / 2);
  Settings settings = SpikySettings("dp2,pp2", "growing");
  settings.batch_warmup = "4:12";
  const JobRun run = RunOn(text, settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  ASSERT_EQ(run.result.rollbacks.size(), 1u) << run.table;
  EXPECT_EQ(run.result.rollbacks[0].step, 10);
  EXPECT_EQ(run.result.rollbacks[0].to_step, 8);
  EXPECT_EQ(run.result.rollbacks[0].skipped_samples, 3 * 4);
  for (const StepMetrics& step : run.result.steps) {
    EXPECT_EQ(step.record.tokens, step.record.step < 12 ? 4 * 16 : 8 * 16);
    EXPECT_NEAR(step.tokens_per_second * step.seconds,
                static_cast<double>(step.record.tokens), 1e-6);
  }
  std::string without = text;
  without.erase(4 * kStepTokens, 3 * kStepTokens / 2);
  settings = SpikySettings("dp2,pp2", "growing_without");
  settings.batch_warmup = "4:12";
  const JobRun never = RunOn(without, settings);
  ASSERT_THAT(never.statuses, Each(IsOk()));
  EXPECT_EQ(run.losses(), never.losses());
}

TEST(WorkerRollbackTest, DetectsSpikeAfterResumption) {
  const std::string text = WithNoise(PlainText(), 13);
  Settings settings = SpikySettings("dp1", "uninterrupted");
  const JobRun whole = RunOn(text, settings);
  ASSERT_THAT(whole.statuses, Each(IsOk()));
  ASSERT_EQ(whole.result.rollbacks.size(), 1u) << whole.table;
  EXPECT_EQ(whole.result.rollbacks[0].to_step, 12);
  const std::string from = settings.run_dir + "/checkpoints/step-00000012";
  settings = SpikySettings("dp1", "continued");
  settings.resume = from;
  const JobRun resumed = RunOn(text, settings);
  ASSERT_THAT(resumed.statuses, Each(IsOk()));
  EXPECT_EQ(resumed.losses(), LossesFrom12(whole));
  EXPECT_EQ(resumed.result.rollbacks.size(), 1u);
}

TEST(WorkerRollbackTest, MetricsHaveEachStepOnceAndTheRollbacks) {
  Settings settings = SpikySettings("dp2", "metrics");
  settings.html = settings.run_dir + "/run.html";
  settings.tensorboard = settings.run_dir + "/events";
  const JobRun run = RunOn(WithNoise(PlainText(), 10), settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  const std::string text = *ReadFile(settings.metrics, 1 << 20);
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), static_cast<size_t>(kSteps));
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto line = nlohmann::json::parse(lines[i]);
    EXPECT_EQ(line["step"], i);
    EXPECT_EQ(line["loss"].get<double>(), run.losses()[i]);
    EXPECT_EQ(line.value("rollbacks", 0), i < 8 ? 0 : 1);
  }
  EXPECT_THAT(
      *ReadFile(settings.html, 1 << 24),
      AllOf(HasSubstr("<title>step 3: training "), HasSubstr("rollbacks")));
}

// The loss has risen before it is a spike, and a checkpoint was written then.
TEST(WorkerRollbackTest, CheckpointsFromAfterTheOnsetAreNotUsed) {
  const std::string text = WithNoise(WithNoise(PlainText(), 11, 0.4), 12);
  Settings settings = SpikySettings("dp1", "onset");
  settings.spike_factor = 1.5;
  const JobRun run = RunOn(text, settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  ASSERT_EQ(run.result.rollbacks.size(), 1u) << run.table;
  EXPECT_EQ(run.result.rollbacks[0].step, 12);
  EXPECT_EQ(run.result.rollbacks[0].to_step, 8);
  EXPECT_EQ(run.result.rollbacks[0].skipped_samples, 5 * 8);
}

TEST(WorkerRollbackTest, FailsAfterTooManyRollbacks) {
  const std::string text =
      WithNoise(WithNoise(WithNoise(PlainText(), 10), 11), 12);
  Settings settings = SpikySettings("dp2", "too_many");
  settings.max_rollbacks = 1;
  const JobRun run = RunOn(text, settings);
  EXPECT_THAT(
      run.statuses,
      Each(StatusIs(absl::StatusCode::kOutOfRange,
                    AllOf(HasSubstr("step 8 (from 0): the loss"),
                          HasSubstr("the run has gone back 1 times, and "
                                    "--max_rollbacks=1. Lower")))));
  settings = SpikySettings("dp2", "enough");
  const JobRun enough = RunOn(text, settings);
  ASSERT_THAT(enough.statuses, Each(IsOk()));
  EXPECT_EQ(enough.result.rollbacks.size(), 3u);
}

// The first step makes weights infinite.
TEST(WorkerRollbackTest, NonFiniteLossesAreSpikes) {
  Settings settings = SpikySettings("dp1", "infinite");
  settings.clip_norm = 0;
  settings.learning_rate = settings.min_learning_rate = 1e39;
  settings.checkpoint_every = 1;
  const JobRun run = RunOn(PlainText(), settings);
  EXPECT_THAT(
      run.statuses,
      ElementsAre(StatusIs(absl::StatusCode::kOutOfRange,
                           AllOf(HasSubstr("step 1 (from 0): the loss is nan"),
                                 HasSubstr("the run has gone back 3 times")))));
  EXPECT_THAT(run.table, HasSubstr("rollback 3 of 3 to step 1, "));
}

TEST(WorkerRollbackTest, IgnoresSpikeWithoutCheckpoint) {
  const std::string text = WithNoise(PlainText(), 10);
  Settings settings = SpikySettings("dp1", "no_checkpoint");
  settings.checkpoint_every = 12;
  const JobRun run = RunOn(text, settings);
  ASSERT_THAT(run.statuses, Each(IsOk()));
  EXPECT_THAT(run.result.rollbacks, IsEmpty());
  EXPECT_THAT(run.table, HasSubstr("no checkpoint precedes it"));
  settings = SpikySettings("dp1", "plain");
  settings.spike_factor = 0;
  settings.spike_window = 32;
  EXPECT_EQ(RunOn(text, settings).losses(), run.losses());
}

}  // namespace
}  // namespace tessera::train
