#include "tools/train/report/metrics_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/text_mutator.h"
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
                     .skipped = true},
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
      keys,
      ElementsAre("step", "loss", "grad_norm", "lr", "tokens_per_second",
                  "memory_bytes", "compute", "communication", "bubble",
                  "offload", "skipped", "loss_scale", "seconds", "products",
                  "optimizer", "state_traffic", "state_hidden", "ranks"));
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
