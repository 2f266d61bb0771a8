#include "tools/train/launch/run_outcome.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::train {
namespace {

using Json = nlohmann::json;

RunOutcome Example() {
  RunOutcome outcome;
  outcome.run_dir = "/run";
  outcome.sample = "The end\n";
  RunResult& result = outcome.result;
  result.first_step = 7;
  result.steps.resize(2);
  result.steps[0].record.loss = 5.5;
  result.steps[1].record.loss = 2.25;
  result.ranks.resize(2);
  result.ranks[0].shares = {0.5, 0.3, 0.1, 0.1, 0, 0, 0.4, 0.2};
  result.ranks[1].shares = {0.3, 0.3, 0.3, 0.1, 0, 0, 0.8, 0.2};
  result.ranks[0].memory.peak_resident = 1000;
  result.ranks[1].memory.peak_resident = 3000;
  result.strategy_changes = {{8, 1 << 20, "aggressive", "--zero=3"}};
  result.checkpoint = "/run/checkpoints/step-00000009";
  result.seconds = 4;
  result.tokens_per_second = 1024;
  return outcome;
}

TEST(OutcomeAsJsonTest, HasWhatARunCameTo) {
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
  EXPECT_EQ(json["sample"], "The end\n");
  EXPECT_FALSE(json.contains("report"));
  EXPECT_FALSE(json.contains("verified"));
}

TEST(OutcomeAsJsonTest, HasReportAndComparisonWhereTheyWereAskedFor) {
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

TEST(OutcomeAsJsonTest, ARunWithoutStepsHasNoLosses) {
  const Json json = Json::parse(OutcomeAsJson({}));
  EXPECT_EQ(json["steps"], 0);
  EXPECT_FALSE(json.contains("first_loss"));
  EXPECT_FALSE(json.contains("compute"));
}

}  // namespace
}  // namespace tessera::train
