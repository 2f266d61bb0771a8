#include "tools/train/report/metrics_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

StepMetrics StepAt(int64_t step) {
  return {.record = {.step = step,
                     .loss = 1.0 / 3,
                     .gradient_norm = std::sqrt(2.0),
                     .learning_rate = 1e-3,
                     .loss_scale = 8,
                     .skipped = true,
                     .tokens = 4096},
          .seconds = 0.5,
          .tokens_per_second = 1e5 / 3,
          .memory_bytes = 123456789,
          .shares = {.compute = 0.5,
                     .communication = 0.25,
                     .bubble = 0.125,
                     .offload = 0.125,
                     .products = 0.4,
                     .optimizer = 0.05}};
}

std::string NewPath(std::string_view name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

std::vector<int64_t> StepsIn(const std::string& path) {
  std::vector<int64_t> steps;
  const std::string text = ReadFile(path, 1 << 20).value_or("?");
  for (std::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    steps.push_back(StepOfMetricsLine(line).value_or(-1));
  }
  return steps;
}

TEST(MetricsLineTest, HasTheKeysOfTheContractAndExactNumbers) {
  const Json line = Json::parse(MetricsLine(StepAt(7), 8));
  std::vector<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.push_back(key);
  EXPECT_THAT(
      keys, ElementsAre("step", "loss", "grad_norm", "lr", "tokens_per_second",
                        "memory_bytes", "compute", "communication", "bubble",
                        "offload", "skipped", "loss_scale", "seconds",
                        "products", "optimizer", "state_traffic",
                        "state_hidden", "ranks", "tokens", "data"));
  EXPECT_EQ(line["step"], 7);
  EXPECT_EQ(line["loss"].get<double>(), 1.0 / 3);
  EXPECT_EQ(line["grad_norm"].get<double>(), std::sqrt(2.0));
  EXPECT_EQ(line["lr"].get<double>(), 1e-3);
  EXPECT_EQ(line["tokens_per_second"].get<double>(), 1e5 / 3);
  EXPECT_EQ(line["memory_bytes"], 123456789);
  EXPECT_EQ(line["compute"].get<double>() +
                line["communication"].get<double>() +
                line["bubble"].get<double>() + line["offload"].get<double>(),
            1);
  EXPECT_EQ(line["skipped"], true);
  EXPECT_EQ(line["loss_scale"], 8.0);
  EXPECT_EQ(line["ranks"], 8);
  EXPECT_EQ(line["tokens"], 4096);
}

TEST(MetricsLineTest, HasTheSlowestRankOfEachSection) {
  StepMetrics step = StepAt(7);
  step.slowest = {{.section = Section::kCompute, .rank = 3, .ratio = 1.5},
                  {.section = Section::kData, .rank = 0, .ratio = 1}};
  const Json line = Json::parse(MetricsLine(step, 8));
  EXPECT_EQ(line["compute_slowest_rank"], 3);
  EXPECT_EQ(line["compute_slowest_ratio"], 1.5);
  EXPECT_EQ(line["data_slowest_rank"], 0);
  EXPECT_FALSE(line.contains("offload_slowest_rank"));
}

TEST(MetricsLineTest, WhatIsNotFiniteIsStillJson) {
  StepMetrics step = StepAt(0);
  step.record.gradient_norm = std::numeric_limits<double>::infinity();
  const std::string line = MetricsLine(step, 1);
  EXPECT_TRUE(Json::parse(line)["grad_norm"].is_null());
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(MetricsLineTest, AnybodysLinesGiveAStepOrNone) {
  EXPECT_EQ(StepOfMetricsLine("{\"step\":12}"), 12);
  EXPECT_EQ(StepOfMetricsLine("{\"step\":0,\"more\":[1]}"), 0);
  for (const char* line :
       {"", "x", "[1]", "12", "{}", "{\"step\":-1}", "{\"step\":1.5}",
        "{\"step\":\"1\"}", "{\"step\":18446744073709551615}",
        "{\"step\":1,\"step\":2}", "{\"step\":1"}) {
    EXPECT_EQ(StepOfMetricsLine(line), std::nullopt) << line;
  }
  TextMutator mutator({MetricsLine(StepAt(7), 8), "{\"step\":12}"},
                      {"[[[[", "{", "\"step\":", "1e999", ",", "null"}, 1);
  for (int i = 0; i < 20'000; ++i) {
    const auto step = StepOfMetricsLine(mutator.Next());
    EXPECT_GE(step.value_or(0), 0);
  }
}

std::vector<std::string> Fields(std::string_view line) {
  return absl::StrSplit(line, ',');
}

TEST(MetricsCsvTest, HasTheNumbersOfTheJsonLine) {
  for (const bool is_validated : {false, true}) {
    StepMetrics step = StepAt(7);
    if (is_validated) step.record.eval_loss = 0.1;
    if (is_validated) step.record.expert_imbalance = 1.25;
    if (is_validated) step.record.max_attention_score = 75;
    if (is_validated) step.record.test_loss = 0.2;
    if (is_validated) step.record.rollbacks = 2;
    step.record.gradient_norm = std::numeric_limits<double>::quiet_NaN();
    const Json line = Json::parse(MetricsLine(step, 8));
    const std::vector<std::string> names = Fields(MetricsCsvHeader());
    const std::vector<std::string> values =
        Fields(MetricsLine(step, 8, MetricsFormat::kCsv));
    ASSERT_EQ(names.size(), 38u);
    ASSERT_EQ(values.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      if (!line.contains(names[i]) || line[names[i]].is_null()) {
        EXPECT_EQ(values[i], "") << names[i];
        // Perplexities and rewards exclude each other.
        EXPECT_TRUE(names[i] == "grad_norm" || !is_validated ||
                    names[i].starts_with("reward_") ||
                    absl::StrContains(names[i], "_slowest_"))
            << names[i];
      } else {
        EXPECT_EQ(values[i], line[names[i]].dump()) << names[i];
      }
    }
  }
}

TEST(MetricsCsvTest, AnybodysLinesGiveAStepOrNone) {
  constexpr MetricsFormat kCsv = MetricsFormat::kCsv;
  const std::string line = MetricsLine(StepAt(12), 8, kCsv);
  EXPECT_EQ(StepOfMetricsLine(line, kCsv), 12);
  const std::string rest = line.substr(2);
  for (const std::string& other :
       {std::string(), MetricsCsvHeader(), "12," + line, rest,
        std::string("12"), "-1" + rest, "1.5" + rest,
        "18446744073709551615" + rest}) {
    EXPECT_EQ(StepOfMetricsLine(other, kCsv), std::nullopt) << other;
  }
  TextMutator mutator({line, MetricsCsvHeader()},
                      {",", ",,,,", "1e999", "\"", "9223372036854775807"}, 1);
  for (int i = 0; i < 20'000; ++i) {
    EXPECT_GE(StepOfMetricsLine(mutator.Next(), kCsv).value_or(0), 0);
  }
}

TEST(MetricsCsvTest, TheNameChoosesTheFormat) {
  EXPECT_EQ(MetricsFormatOf("a.csv"), MetricsFormat::kCsv);
  EXPECT_EQ(MetricsFormatOf("a.CSV"), MetricsFormat::kCsv);
  EXPECT_EQ(MetricsFormatOf("csv"), MetricsFormat::kJson);
  EXPECT_EQ(MetricsFormatOf("a.csv.jsonl"), MetricsFormat::kJson);
  EXPECT_EQ(MetricsFormatOf(""), MetricsFormat::kJson);
}

TEST(MetricsCsvTest, AResumedRunContinuesTheFile) {
  constexpr MetricsFormat kCsv = MetricsFormat::kCsv;
  const std::string path = NewPath("resumed.csv");
  unlink(path.c_str());
  std::string expected = MetricsCsvHeader() + "\n";
  for (const int64_t first_step : {0, 2}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto file,
                                 MetricsFile::Open(path, first_step));
    EXPECT_EQ(*ReadFile(path, 1 << 20), expected);
    for (int64_t step = first_step; step < 4; ++step) {
      TESSERA_ASSERT_OK(file->Add(StepAt(step), 2));
      if (step < 2) {
        absl::StrAppend(&expected, MetricsLine(StepAt(step), 2, kCsv), "\n");
      }
    }
  }
  for (int64_t step = 2; step < 4; ++step) {
    absl::StrAppend(&expected, MetricsLine(StepAt(step), 2, kCsv), "\n");
  }
  EXPECT_EQ(*ReadFile(path, 1 << 20), expected);
  // Half a line, as after a crash.
  TESSERA_ASSERT_OK(WriteFile(path, expected + "4,1.5"));
  TESSERA_ASSERT_OK(MetricsFile::Open(path, 4).status());
  EXPECT_EQ(*ReadFile(path, 1 << 20), expected);
}

TEST(MetricsCsvTest, RefusesToContinueOtherColumns) {
  const std::string path = NewPath("other.csv");
  TESSERA_ASSERT_OK(WriteFile(path, "step,accuracy\n0,1\n"));
  EXPECT_THAT(MetricsFile::Open(path, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("other columns, \"step,accuracy\"")));
  EXPECT_EQ(*ReadFile(path, 1 << 20), "step,accuracy\n0,1\n");
  TESSERA_EXPECT_OK(MetricsFile::Open(path, 0));
  EXPECT_EQ(*ReadFile(path, 1 << 20), MetricsCsvHeader() + "\n");
}

TEST(ReadMetricsTest, GivesBackTheStepsBeforeTheFirstOne) {
  for (const char* const name : {"read.jsonl", "read.csv"}) {
    const std::string path = NewPath(name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, MetricsFile::Open(path, 0));
    std::vector<StepMetrics> written;
    for (int64_t i = 0; i < 5; ++i) {
      StepMetrics step = StepAt(i);
      if (i == 1) step.record.eval_loss = 0.1;
      if (i == 3) step.record.expert_imbalance = 1.25;
      if (i == 4) step.record.max_attention_score = 75;
      if (i == 3) step.record.test_loss = 0.2;
      if (i == 2) {
        step.record.loss = std::numeric_limits<double>::infinity();
        step.record.skipped = false;
      }
      TESSERA_ASSERT_OK(file->Add(step, 2));
      written.push_back(step);
    }
    std::vector<nlohmann::json> lines;
    const auto add = [&](const nlohmann::json& line) { lines.push_back(line); };
    TESSERA_ASSERT_OK(ReadMetrics(path, 0, add));
    EXPECT_TRUE(lines.empty());
    TESSERA_ASSERT_OK(ReadMetrics(path, 4, add));
    ASSERT_EQ(lines.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      // All numbers, exactly; those that are not finite and those that the step
      // does not have are null or absent.
      nlohmann::json expected = MetricsOf(written[i]);
      expected["ranks"] = 2;
      if (i == 2) expected["loss"] = nullptr;
      for (const auto& [key, value] : expected.items()) {
        EXPECT_EQ(lines[i].value(key, nlohmann::json()), value) << key;
      }
      EXPECT_LE(lines[i].size(), expected.size());
    }
    TESSERA_EXPECT_OK(ReadMetrics(NewPath("no_such_file"), 4, add));
    EXPECT_FALSE(ReadMetrics(::testing::TempDir(), 4, add).ok());
  }
}

TEST(ReadMetricsTest, TakesAnybodysLines) {
  for (const char* const name : {"damaged.jsonl", "damaged.csv"}) {
    const std::string path = NewPath(name);
    const MetricsFormat format = MetricsFormatOf(path);
    TextMutator mutator(
        {MetricsLine(StepAt(7), 8, format), MetricsLine(StepAt(0), 1, format)},
        {"[[[[", "{", "\"loss\":\"x\"", "1e999", ",", "null", "-1", "1e18"}, 2);
    std::string text;
    for (int i = 0; i < 5000; ++i) absl::StrAppend(&text, mutator.Next(), "\n");
    TESSERA_ASSERT_OK(WriteFile(path, text));
    int64_t count = 0;
    TESSERA_EXPECT_OK(
        ReadMetrics(path, 1'000'000, [&](const nlohmann::json& line) {
          ++count;
          EXPECT_GE(line.at("step").get<int64_t>(), 0);
        }));
    EXPECT_GT(count, 500) << name;
  }
}

TEST(MetricsFileTest, EveryStepIsALineAtOnce) {
  const std::string path = NewPath("grows.jsonl");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, MetricsFile::Open(path, 0));
  EXPECT_THAT(StepsIn(path), ElementsAre());
  EXPECT_THAT(file->Add(StepAt(0), 2), IsOk());
  EXPECT_THAT(StepsIn(path), ElementsAre(0));
  EXPECT_THAT(file->Add(StepAt(1), 2), IsOk());
  EXPECT_THAT(StepsIn(path), ElementsAre(0, 1));
  EXPECT_EQ(*ReadFile(path, 1 << 20),
            absl::StrCat(MetricsLine(StepAt(0), 2), "\n",
                         MetricsLine(StepAt(1), 2), "\n"));
}

TEST(MetricsFileTest, AResumedRunReplacesTheStepsThatItTakesAgain) {
  const std::string path = NewPath("resumed.jsonl");
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, MetricsFile::Open(path, 0));
    for (int64_t step = 0; step < 5; ++step) {
      ASSERT_THAT(file->Add(StepAt(step), 1), IsOk());
    }
  }
  // The state of the file after its writer was killed.
  std::string text = *ReadFile(path, 1 << 20) + "{\"step\":5,\"los";
  ASSERT_THAT(WriteFile(path, text), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, MetricsFile::Open(path, 3));
  EXPECT_THAT(StepsIn(path), ElementsAre(0, 1, 2));
  EXPECT_THAT(file->Add(StepAt(3), 1), IsOk());
  EXPECT_THAT(StepsIn(path), ElementsAre(0, 1, 2, 3));
}

TEST(MetricsFileTest, AResumedRunMayBeginAFile) {
  const std::string path = NewPath("fresh.jsonl");
  unlink(path.c_str());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, MetricsFile::Open(path, 3));
  EXPECT_THAT(file->Add(StepAt(3), 1), IsOk());
  EXPECT_THAT(StepsIn(path), ElementsAre(3));
}

TEST(MetricsFileTest, ANewRunBeginsAnew) {
  const std::string path = NewPath("anew.jsonl");
  ASSERT_THAT(WriteFile(path, MetricsLine(StepAt(9), 1) + "\n"), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, MetricsFile::Open(path, 0));
  EXPECT_THAT(StepsIn(path), ElementsAre());
}

TEST(MetricsFileTest, NamesTheFlagWhereTheFileCannotBe) {
  const std::string path = NewPath("missing/run.jsonl");
  for (int64_t first_step : {0, 3}) {
    const absl::Status status = MetricsFile::Open(path, first_step).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--metrics=" + path)));
  }
  EXPECT_FALSE(MetricsFile::Open(::testing::TempDir(), 0).ok());
}

}  // namespace
}  // namespace tessera::train
