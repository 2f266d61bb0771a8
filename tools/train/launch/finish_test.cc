#include "tools/train/launch/finish.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/memory_ladder.h"

namespace tessera::train {

namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

RunOutcome Example() {
  RunOutcome outcome;
  outcome.run_dir = "/run";
  outcome.sample = "The end\n";
  outcome.models = {"model", "model/best"};
  RunResult& result = outcome.result;
  result.first_step = 7;
  result.steps.resize(2);
  result.steps[0].record.loss = 5.5;
  result.steps[1].record.loss = 2.25;
  result.ranks.resize(2);
  result.ranks[0].shares = {0.5, 0.3, 0.1, 0.1, 0, 0, 0, 0.4, 0.2};
  result.ranks[1].shares = {0.3, 0.3, 0.3, 0.1, 0, 0, 0, 0.8, 0.2};
  result.ranks[0].memory.peak_resident = 1000;
  result.ranks[1].memory.peak_resident = 3000;
  result.strategy_changes = {{8, 1 << 20, "aggressive", "--zero=3"}};
  result.rollbacks = {{.step = 7,
                       .loss = 9.5,
                       .usual = 2,
                       .to_step = 4,
                       .skipped_samples = 64}};
  result.snapshot_choices = {{.every = 12,
                              .step_seconds = 0.2,
                              .copy_seconds = 0.003,
                              .failure_seconds = 3600}};
  result.checkpoint = "/run/checkpoints/step-00000009";
  result.seconds = 4;
  result.tokens_per_second = 1024;
  return outcome;
}

TEST(OutcomeAsJsonTest, HasResults) {
  const Json json = Json::parse(OutcomeAsJson(Example()));
  EXPECT_EQ(json["run_dir"], "/run");
  EXPECT_EQ(json["checkpoint"], "/run/checkpoints/step-00000009");
  EXPECT_EQ(json["model"], "llama-1m");
  EXPECT_EQ(json["mesh"], "dp2,pp2,tp2");
  EXPECT_EQ(json["first_step"], 7);
  EXPECT_EQ(json["steps"], 2);
  EXPECT_EQ(json["tokens"], 2 * 16 * 128);
  EXPECT_EQ(json["seconds"], 4);
  EXPECT_EQ(json["tokens_per_second"], 1024);
  EXPECT_EQ(json["first_loss"], 5.5);
  EXPECT_EQ(json["last_loss"], 2.25);
  EXPECT_NEAR(json["compute"].get<double>(), 0.4, 1e-12);
  EXPECT_NEAR(json["bubble"].get<double>(), 0.2, 1e-12);
  EXPECT_NEAR(json["state_traffic"].get<double>(), 0.6, 1e-12);
  EXPECT_NEAR(json["state_hidden"].get<double>(), 0.2, 1e-12);
  EXPECT_EQ(json["memory_bytes"], 3000);
  ASSERT_EQ(json["strategy_changes"].size(), 1u);
  EXPECT_EQ(json["strategy_changes"][0]["steps"], 8);
  EXPECT_EQ(json["strategy_changes"][0]["used"], 1 << 20);
  EXPECT_EQ(json["strategy_changes"][0]["strategy"], "aggressive");
  EXPECT_EQ(json["strategy_changes"][0]["flags"], "--zero=3");
  ASSERT_EQ(json["snapshot_choices"].size(), 1u);
  EXPECT_EQ(json["snapshot_choices"][0]["every"], 12);
  EXPECT_EQ(json["snapshot_choices"][0]["copy_seconds"], 0.003);
  ASSERT_EQ(json["rollbacks"].size(), 1u);
  EXPECT_EQ(json["rollbacks"][0]["step"], 7);
  EXPECT_EQ(json["rollbacks"][0]["loss"], 9.5);
  EXPECT_EQ(json["rollbacks"][0]["usual"], 2);
  EXPECT_EQ(json["rollbacks"][0]["to_step"], 4);
  EXPECT_EQ(json["rollbacks"][0]["skipped_samples"], 64);
  EXPECT_EQ(json["sample"], "The end\n");
  EXPECT_EQ(json["models"], Json({"model", "model/best"}));
  EXPECT_FALSE(json.contains("report"));
  EXPECT_FALSE(json.contains("verified"));
}

TEST(OutcomeAsJsonTest, HasRequestedReportAndComparison) {
  RunOutcome outcome = Example();
  outcome.report.emplace();
  outcome.report->steps = 2;
  outcome.verified = LossDifference{.steps = 2, .largest = 3e-8, .at_step = 1};
  const Json json = Json::parse(OutcomeAsJson(outcome));
  EXPECT_EQ(json["report"]["steps"], 2);
  EXPECT_EQ(json["verified"]["steps"], 2);
  EXPECT_EQ(json["verified"]["largest_difference"], 3e-8);
  EXPECT_EQ(json["verified"]["at_step"], 1);
}

TEST(OutcomeAsJsonTest, AnyTextAndAnyNumberIsJson) {
  RunOutcome outcome = Example();
  outcome.sample = std::string("\xff\xfe quote \" \x01 \xc3", 13);
  outcome.result.steps[1].record.loss =
      std::numeric_limits<double>::quiet_NaN();
  const Json json = Json::parse(OutcomeAsJson(outcome));
  EXPECT_TRUE(json["last_loss"].is_null());
  EXPECT_NE(json["sample"].get<std::string>().find("quote \""),
            std::string::npos);
}

TEST(OutcomeAsJsonTest, HasTheLastValidation) {
  RunOutcome outcome = Example();
  EXPECT_FALSE(Json::parse(OutcomeAsJson(outcome)).contains("eval_loss"));
  outcome.result.steps[0].record.eval_loss = 2;
  const Json json = Json::parse(OutcomeAsJson(outcome));
  EXPECT_EQ(json["eval_loss"], 2.0);
  EXPECT_NEAR(json["eval_perplexity"].get<double>(), 7.389, 1e-3);
  EXPECT_THAT(SummaryText({}, outcome.result),
              HasSubstr("\nvalidation loss 2.0000, perplexity 7.389 after"));
}

TEST(OutcomeAsJsonTest, HasTheTest) {
  RunOutcome outcome = Example();
  EXPECT_FALSE(Json::parse(OutcomeAsJson(outcome)).contains("test_loss"));
  outcome.result.steps.back().record.test_loss = 2;
  const Json json = Json::parse(OutcomeAsJson(outcome));
  EXPECT_EQ(json["test_loss"], 2.0);
  EXPECT_NEAR(json["test_perplexity"].get<double>(), 7.389, 1e-3);
  EXPECT_THAT(SummaryText({}, outcome.result),
              HasSubstr("\ntest       loss 2.0000, perplexity 7.389\n"));
}

TEST(OutcomeAsJsonTest, ARunWithoutStepsHasNoLosses) {
  const Json json = Json::parse(OutcomeAsJson({}));
  EXPECT_EQ(json["steps"], 0);
  EXPECT_FALSE(json.contains("first_loss"));
  EXPECT_FALSE(json.contains("compute"));
}

using ::testing::Not;

RunResult SummaryExample() {
  RunResult result;
  result.steps.resize(2);
  result.steps[0].record.loss = 5.5;
  result.steps[1].record = {.step = 1, .loss = 2.25};
  result.ranks.resize(2);
  result.ranks[0].shares = {0.5, 0.3, 0.1, 0.1, 0, 0};
  result.ranks[1].shares = {0.3, 0.3, 0.3, 0.1, 0, 0};
  result.ranks[1].memory.peak_resident = 3 << 19;
  result.checkpoint = "/run/checkpoints/step-00000002";
  result.seconds = 4;
  result.tokens_per_second = 1024;
  return result;
}

TEST(SummaryTextTest, SummarizesRun) {
  EXPECT_EQ(SummaryText({}, SummaryExample()),
            "\n2 steps of 2048 tokens in 4.0 s, 1024 tokens/s\n"
            "loss       5.5000 at step 1, 2.2500 at step 2\n"
            "time       compute 40 %, communication 30 %, bubble 20 %, offload "
            "10 %; rank 1 computes least, 30 %\n"
            "memory     1.5 MiB resident at most, of rank 1\n"
            "checkpoint /run/checkpoints/step-00000002\n");
}

TEST(SummaryTextTest, ListsStrategyChanges) {
  RunResult result = SummaryExample();
  result.strategy_changes = {{3, 1 << 20, "standard", "--recompute=full"},
                             {5, 1 << 20, "aggressive", "--zero=3"}};
  EXPECT_THAT(SummaryText({}, result),
              HasSubstr("strategy   standard after 3 steps: --recompute=full\n"
                        "strategy   aggressive after 5 steps: --zero=3\n"));
}

TEST(OutcomeAsJsonTest, CountsTokensOfGrowingBatch) {
  RunOutcome outcome = Example();
  const auto steps = static_cast<int64_t>(outcome.result.steps.size());
  outcome.settings.batch = 4 * 16;
  outcome.settings.length = 10;
  outcome.settings.batch_warmup = "16:1000";
  EXPECT_EQ(Json::parse(OutcomeAsJson(outcome))["tokens"], steps * 16 * 10);
  EXPECT_THAT(SummaryText(outcome.settings, outcome.result),
              HasSubstr(" steps of 160 to 640 tokens in "));
}

TEST(SummaryTextTest, NamesRollbacks) {
  RunResult result = SummaryExample();
  result.rollbacks = {
      {.step = 7, .loss = 9.5, .to_step = 4, .skipped_samples = 64}};
  EXPECT_THAT(SummaryText({}, result),
              HasSubstr("rollback   from step 8, of loss 9.5000, to step 5; 64 "
                        "samples left out\n"));
}

TEST(SummaryTextTest, PrintsSnapshotInterval) {
  RunResult result = SummaryExample();
  result.snapshot_choices = {{.every = 12,
                              .step_seconds = 0.2,
                              .copy_seconds = 0.003,
                              .failure_seconds = 3600}};
  EXPECT_THAT(
      SummaryText({}, result),
      HasSubstr("copies     after every 12 steps: a copy takes 3.0 ms, a step "
                "200.0 ms, and a failure is expected every 1h; 0.12 % "
                "of the time\n"));
}

TEST(SummaryTextTest, OmitsMissingParts) {
  RunResult result;
  result.first_step = 60;
  EXPECT_EQ(SummaryText({}, result),
            "\n0 steps of 2048 tokens in 0.0 s, 0 tokens/s, after step 60\n");
}

TEST(SummaryTextTest, ThreadsShareTheirMemory) {
  RunResult result = SummaryExample();
  result.memory_is_shared = true;
  EXPECT_THAT(SummaryText({}, result), HasSubstr("1.5 MiB resident for all"));
  EXPECT_THAT(SummaryText({}, result), Not(HasSubstr("of rank")));
}

RunResult Losses(std::vector<double> losses, int64_t first = 0) {
  RunResult result;
  for (size_t i = 0; i < losses.size(); ++i) {
    StepMetrics step;
    step.record.step = first + static_cast<int64_t>(i);
    step.record.loss = losses[i];
    result.steps.push_back(step);
  }
  return result;
}

TEST(OneRankSettingsTest, AreValidForEveryMemoryStrategy) {
  using topology::MemoryStrategy;
  for (const MemoryStrategy strategy :
       {MemoryStrategy::kBasic, MemoryStrategy::kStandard,
        MemoryStrategy::kAggressive, MemoryStrategy::kExtreme}) {
    Settings settings;
    settings.parallel.split.counts = {1, 3};
    settings.parallel.device_budget = ByteSize(1);
    settings.parallel.memory_strategy = strategy;
    settings.max_gathered_bytes = 1 << 30;
    const Settings alone = OneRankSettings(AtLowestRung(settings, "/scratch"));
    TESSERA_EXPECT_OK(CheckSettings(alone));
    EXPECT_EQ(alone.parallel,
              topology::ParallelConfig{.strategy = alone.parallel.strategy});
  }
}

TEST(OneRankSettingsTest, KeepSettingsThatAffectLosses) {
  const Settings settings = {.model = "llama-10m",
                             .batch = 12,
                             .seed = 5,
                             .parallel = {.mesh = {.dp = 2, .cp = 2},
                                          .dtype = DType::kBF16,
                                          .memory_limit = ByteSize(1 << 30)},
                             .recompute = "full",
                             .offload = "all",
                             .run_dir = "/run",
                             .resume = "from",
                             .metrics = "m",
                             .tensorboard = "t",
                             .html = "h",
                             .prometheus_file = "p.prom",
                             .max_restarts = 2};
  const Settings alone = OneRankSettings(settings);
  Settings expected = settings;
  expected.parallel.mesh = {};
  expected.parallel.memory_limit = {};
  expected.engine = "in_process";
  expected.parallel.strategy = topology::CommunicationStrategy::kAllReduce;
  expected.recompute = "none";
  expected.zero = 0;
  expected.offload = "none";
  expected.run_dir = "";
  expected.metrics = "";
  expected.tensorboard = "";
  expected.html = "";
  expected.prometheus_file = "";
  expected.max_restarts = 0;
  expected.quiet = true;
  EXPECT_EQ(alone, expected);
}

TEST(CompareLossesTest, FindsLargestDifferenceOfCommonSteps) {
  const LossDifference difference =
      CompareLosses(Losses({2, 4.4, 5, 9}, 10), Losses({7, 2, 4, 5}, 9));
  EXPECT_EQ(difference.steps, 3);
  EXPECT_NEAR(difference.largest, 0.1, 1e-12);
  EXPECT_EQ(difference.at_step, 11);
  EXPECT_EQ(CompareLosses(Losses({1, 2}), Losses({1, 2})).largest, 0);
}

TEST(CompareLossesTest, NanIsLargestDifference) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [a, b] : {std::pair(nan, 2.0), std::pair(2.0, nan)}) {
    const LossDifference difference =
        CompareLosses(Losses({1, a, 50}), Losses({1, b, 2}));
    EXPECT_TRUE(std::isnan(difference.largest));
    EXPECT_EQ(difference.at_step, 1);
    EXPECT_THAT(CheckDifference(difference, {}),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step 2")));
  }
}

TEST(CheckDifferenceTest, ToleranceDependsOnType) {
  const Settings fp32;
  const Settings bf16 = {.parallel = {.dtype = DType::kBF16}};
  TESSERA_EXPECT_OK(CheckDifference({3, 9e-6, 1}, fp32));
  EXPECT_THAT(CheckDifference({3, 1.1e-5, 1}, fp32),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1.1e-05")));
  TESSERA_EXPECT_OK(CheckDifference({3, 1.9e-2, 1}, bf16));
  EXPECT_FALSE(CheckDifference({3, 2.1e-2, 1}, bf16).ok());
  const Settings fp8 = {.parallel = {.dtype = DType::kBF16, .fp8 = true}};
  TESSERA_EXPECT_OK(CheckDifference({3, 4.9e-2, 1}, fp8));
  EXPECT_THAT(
      CheckDifference({3, 5.1e-2, 1}, fp8),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("allowed for fp8")));
  EXPECT_FALSE(CheckDifference({0, 0, 0}, fp32).ok());
}

}  // namespace

}  // namespace tessera::train
