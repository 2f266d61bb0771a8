#include "tools/train/report/run_report.h"

#include <optional>
#include <sstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/predict/run_prediction.h"

namespace tessera::train {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr MachineRoom kRoom = {
    .bytes = 1'000'000, .limit = "machine", .process = 1000};

// A run of dp2,pp2,tp2 without problems.
class RunReportTest : public testing::Test {
 protected:
  void SetUp() override {
    settings_.offload = "optimizer";
    for (int r = 0; r < 8; ++r) {
      result_.ranks.push_back(
          {.shares = {.compute = 0.7,
                      .communication = 0.1,
                      .bubble = 0.15,
                      .offload = 0.05,
                      .products = 0.6},
           .memory = {.peak_resident = 51'000, .resident_before = 1000}});
    }
    result_.steps.resize(3);
    result_.tokens_per_second = 1234;
  }

  RunReport Report() {
    const auto model = *model_files::PresetConfig(settings_.model);
    auto prediction = MakePrediction(settings_, model, {.room = kRoom});
    EXPECT_THAT(prediction.status(), IsOk());
    return MakeRunReport(result_, settings_, *prediction);
  }
  // The measurement of a rule; the first one for stragglers.
  std::optional<Measurement> Of(ReportRule rule) {
    for (const Measurement& one : Report().measurements) {
      if (one.rule == rule) return one;
    }
    return std::nullopt;
  }

  Settings settings_;
  RunResult result_;
};

TEST_F(RunReportTest, AGoodRunIsTold) {
  const RunReport report = Report();
  EXPECT_TRUE(report.all_well());
  EXPECT_EQ(report.measurements.size(), 6u);
  for (const Measurement& one : report.measurements) {
    EXPECT_THAT(one.change, IsEmpty());
    EXPECT_FALSE(one.meaning.empty());
  }
  std::ostringstream text;
  PrintRunReport(report, text);
  EXPECT_THAT(text.str(), HasSubstr("no bottleneck found"));
  EXPECT_THAT(text.str(), HasSubstr("report of 3 steps, 1234 tokens/s"));
}

TEST_F(RunReportTest, CommunicationIsToldAboveItsLimit) {
  for (RankResult& rank : result_.ranks) rank.shares.communication = 0.30;
  EXPECT_FALSE(Of(ReportRule::kCommunication)->broken);
  result_.ranks[3].shares.communication = 0.31;
  const auto one = Of(ReportRule::kCommunication);
  EXPECT_TRUE(one->broken);
  EXPECT_NEAR(one->measured, 0.30125, 1e-9);
  // With ZeRO 3 dp carries most bytes: weights, for each micro-batch.
  EXPECT_THAT(one->change, HasSubstr("along dp: --zero=1"));
  // Otherwise tp does: two all-reduces per layer and pass.
  settings_.zero = 1;
  EXPECT_THAT(Of(ReportRule::kCommunication)->change,
              HasSubstr("along tp: --mesh=dp4,pp2"));
}

TEST_F(RunReportTest, WhatToChangeFollowsTheBusiestAxis) {
  for (RankResult& rank : result_.ranks) rank.shares.communication = 0.9;
  settings_.parallel.mesh = {.dp = 8};
  settings_.zero = 3;
  EXPECT_THAT(Of(ReportRule::kCommunication)->change, HasSubstr("--zero=1"));
  settings_.zero = 1;
  EXPECT_THAT(Of(ReportRule::kCommunication)->change, HasSubstr("--batch=32"));
}

TEST_F(RunReportTest, MemoryIsToldAboveItsLimit) {
  // 8 ranks of 112500 are 90 % of a million.
  for (RankResult& rank : result_.ranks) rank.memory.peak_resident = 113'500;
  EXPECT_FALSE(Of(ReportRule::kMemory)->broken);
  result_.ranks[0].memory.peak_resident += 1000;
  const auto one = Of(ReportRule::kMemory);
  EXPECT_TRUE(one->broken);
  EXPECT_NEAR(one->measured, 0.901, 1e-9);
  EXPECT_THAT(one->change, HasSubstr("--recompute=selective"));
  settings_.recompute = "selective";
  settings_.zero = 1;
  EXPECT_THAT(Of(ReportRule::kMemory)->change, HasSubstr("--zero=3"));
  settings_.zero = 3;
  settings_.parallel.micro_batch = 2;
  EXPECT_THAT(Of(ReportRule::kMemory)->change, HasSubstr("--micro_batch=1"));
  settings_.parallel.micro_batch = 1;
  EXPECT_THAT(Of(ReportRule::kMemory)->change, HasSubstr("--recompute=full"));
  settings_.recompute = "full";
  EXPECT_THAT(Of(ReportRule::kMemory)->change, HasSubstr("--offload_dir=DIR"));
  settings_.offload_dir = "there";
  EXPECT_THAT(Of(ReportRule::kMemory)->change, HasSubstr("--length=64"));
  // With GPUs it is the host's memory.
  settings_.device = "cuda";
  EXPECT_THAT(Of(ReportRule::kMemory)->change, HasSubstr("fewer ranks"));
  settings_.offload_dir = "";
  EXPECT_THAT(Of(ReportRule::kMemory)->change, HasSubstr("--offload_dir=DIR"));
}

TEST_F(RunReportTest, ThreadsAreCountedOnce) {
  result_.memory_is_shared = true;
  EXPECT_NEAR(Of(ReportRule::kMemory)->measured, 0.05, 1e-9);
}

TEST_F(RunReportTest, PipelineEfficiencyIsToldBelowItsLimit) {
  for (RankResult& rank : result_.ranks) {
    rank.shares = {
        .compute = 0.6, .communication = 0.1, .bubble = 0.3, .products = 0.6};
  }
  EXPECT_FALSE(Of(ReportRule::kPipeline)->broken);
  result_.ranks[7].shares.bubble = 0.32;
  EXPECT_TRUE(Of(ReportRule::kPipeline)->broken);
  // With enough micro-batches the advice is another schedule, else more
  // micro-batches.
  EXPECT_THAT(Of(ReportRule::kPipeline)->change, HasSubstr("--schedule=zb_h1"));
  settings_.parallel.schedule = "zb_h1";
  EXPECT_THAT(Of(ReportRule::kPipeline)->change, HasSubstr("--mesh=dp4,pp1"));
  settings_.batch = 8;
  EXPECT_THAT(Of(ReportRule::kPipeline)->change, HasSubstr("--batch=16"));
  settings_.parallel.micro_batch = 2;
  EXPECT_THAT(Of(ReportRule::kPipeline)->change, HasSubstr("--micro_batch=1"));
}

TEST_F(RunReportTest, TensorEfficiencyIsToldBelowItsLimit) {
  const auto model = *model_files::PresetConfig(settings_.model);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RunPrediction prediction,
      MakePrediction(settings_, model, {.room = kRoom}));
  double tensor = 0, all = 0;
  for (const RankPrediction& rank : prediction.ranks) {
    tensor += rank.traffic.SentAlong(TrafficAxis::kTp);
    for (const TrafficAxis axis : kTrafficAxes) {
      all += rank.traffic.SentAlong(axis);
    }
  }
  // With p products and c messages, of which a share s is between tensor ranks,
  // the efficiency is p / (p + s c).
  const double limit = 0.25 * 0.4 / (tensor / all);
  for (RankResult& rank : result_.ranks) {
    rank.shares.products = 0.4;
    rank.shares.communication = 0.999 * limit;
  }
  EXPECT_FALSE(Of(ReportRule::kTensor)->broken);
  for (RankResult& rank : result_.ranks) {
    rank.shares.communication = 1.001 * limit;
  }
  const auto one = Of(ReportRule::kTensor);
  EXPECT_TRUE(one->broken);
  EXPECT_NEAR(one->measured, 0.8, 1e-3);
  EXPECT_THAT(one->change, HasSubstr("--mesh=dp4,pp2"));
}

TEST_F(RunReportTest, ARankFarBehindTheMedianOfItsStageIsTold) {
  // The second stage takes twice as long, which does not make it a straggler.
  for (int64_t r = 4; r < 8; ++r) {
    result_.ranks[static_cast<size_t>(r)].shares.compute = 1.4;
  }
  EXPECT_FALSE(Of(ReportRule::kStraggler)->broken);
  result_.ranks[2].shares.compute = 0.7 * 1.19;
  EXPECT_FALSE(Of(ReportRule::kStraggler)->broken);
  EXPECT_EQ(Of(ReportRule::kStraggler)->rank, 2);
  result_.ranks[2].shares.compute = 0.7 * 1.21;
  result_.ranks[6].shares.compute = 1.4 * 1.5;
  int64_t broken = 0;
  for (const Measurement& one : Report().measurements) {
    if (one.rule != ReportRule::kStraggler) continue;
    EXPECT_TRUE(one.broken);
    EXPECT_TRUE(one.rank == 2 || one.rank == 6);
    EXPECT_THAT(one.change, HasSubstr("--threads"));
    ++broken;
  }
  EXPECT_EQ(broken, 2);
}

TEST_F(RunReportTest, OffloadStallsAreToldAboveTheirLimit) {
  result_.ranks[5].shares.offload = 0.099;
  EXPECT_FALSE(Of(ReportRule::kOffload)->broken);
  result_.ranks[5].shares.offload = 0.101;
  const auto one = Of(ReportRule::kOffload);
  EXPECT_TRUE(one->broken);
  EXPECT_EQ(one->rank, 5);
  EXPECT_THAT(one->change, HasSubstr("--offload=none"));
  settings_.compression = "lossless";
  EXPECT_THAT(Of(ReportRule::kOffload)->change,
              HasSubstr("--compression=none"));
  settings_.offload_dir = "there";
  EXPECT_THAT(Of(ReportRule::kOffload)->change, HasSubstr("--offload_dir= "));
  settings_.offload = "all";
  EXPECT_THAT(Of(ReportRule::kOffload)->change,
              HasSubstr("--offload=optimizer"));
  settings_.offload = "all,activations";
  EXPECT_THAT(Of(ReportRule::kOffload)->change,
              HasSubstr("--recompute=full, which keeps less"));
}

TEST_F(RunReportTest, OffloadStallsStandBesideTheirLowerBound) {
  EXPECT_THAT(Of(ReportRule::kOffload)->meaning,
              testing::Not(HasSubstr("at least")));
  result_.ranks[5].shares.offload = 0.06;
  result_.ranks[5].traffic = {.bytes_read = 1 << 20,
                              .stall_ns = 30'000'000,
                              .least_stall_ns = 12'600'000};
  EXPECT_THAT(Of(ReportRule::kOffload)->meaning,
              HasSubstr("of 10.00 ms a step for reads, any order of reads "
                        "needs at least 4.20 ms"));
}

TEST_F(RunReportTest, RulesThatDoNotApplyAreLeftOut) {
  settings_.parallel.mesh = {};
  settings_.offload = "none";
  result_.ranks.resize(1);
  EXPECT_EQ(Report().measurements.size(), 1u);  // Memory.
  result_.ranks.clear();
  EXPECT_THAT(Report().measurements, IsEmpty());
}

TEST_F(RunReportTest, JsonSaysWhatTheReportSays) {
  result_.ranks[5].shares.offload = 0.5;
  const RunReport report = Report();
  const auto json = nlohmann::json::parse(RunReportAsJson(report));
  EXPECT_EQ(json["all_well"], false);
  ASSERT_EQ(json["measurements"].size(), report.measurements.size());
  EXPECT_EQ(json["measurements"].back()["rule"], "offload");
  EXPECT_EQ(json["measurements"].back()["rank"], 5);
  EXPECT_EQ(json["measurements"].back()["broken"], true);
  std::ostringstream text;
  PrintRunReport(report, text);
  EXPECT_THAT(text.str(), HasSubstr("CHANGE   offload"));
  EXPECT_THAT(text.str(), HasSubstr("try --offload=none"));
}

}  // namespace
}  // namespace tessera::train
