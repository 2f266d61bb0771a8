#include "tools/offload_bench/measurement.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "offload/optimizer/triad.h"
#include "tools/cli/cli.h"
#include "tools/offload_bench/blocks.h"

namespace tessera::offload_bench {

namespace {

using ::testing::HasSubstr;

TEST(CompareTest, TakesMediansAndComparesTurnByTurn) {
  // Everything takes ten times as long from the third round on.
  const Comparison c = Compare({4, 2, 40, 20, 40}, {1, 1, 10, 10, 20});
  EXPECT_EQ(c.turns, 5);
  EXPECT_DOUBLE_EQ(c.subject.seconds, 20);
  EXPECT_DOUBLE_EQ(c.limit.seconds, 10);
  EXPECT_DOUBLE_EQ(c.share, 0.5);  // Median of 1/4, 1/2, 1/4, 1/2, 1/2.
  EXPECT_DOUBLE_EQ(c.subject.spread, (40.0 - 4) / 20);
}

TEST(CompareTest, OneTurnHasNoSpread) {
  const Comparison c = Compare({2}, {1});
  EXPECT_DOUBLE_EQ(c.share, 0.5);
  EXPECT_DOUBLE_EQ(c.subject.spread, 0);
}

TEST(CompareInTurnsTest, AlternatesTheOrder) {
  std::string order;
  const auto pass = [&order](char name) -> Pass {
    return [&order, name]() -> absl::StatusOr<double> {
      order += name;
      return name == 's' ? 4.0 : 1.0;
    };
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(const Comparison c,
                               CompareInTurns(pass('s'), pass('l'), 0));
  EXPECT_EQ(order,
            "sl"
            "sl"
            "ls"
            "sl"
            "ls"
            "sl");
  EXPECT_EQ(c.turns, kLeastTurns);
  EXPECT_DOUBLE_EQ(c.share, 0.25);
}

TEST(CompareInTurnsTest, RunsForTheGivenTime) {
  const Pass pass = Timed([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const Comparison c,
                               CompareInTurns(pass, pass, 0.1));
  EXPECT_GT(c.turns, kLeastTurns);
  EXPECT_GT(c.share, 0.2);
  EXPECT_LT(c.share, 5);
}

TEST(CompareInTurnsTest, EndsAtTheFirstError) {
  for (const bool of_limit : {false, true}) {
    int left = 3;
    const Pass good = [] { return 1.0; };
    const Pass bad = [&left]() -> absl::StatusOr<double> {
      if (left-- == 0) return absl::DataLossError("it broke");
      return 1.0;
    };
    EXPECT_THAT(
        of_limit ? CompareInTurns(good, bad, 1) : CompareInTurns(bad, good, 1),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("it broke")));
    EXPECT_EQ(left, -1);
  }
}

TEST(TimedTest, RepeatsShortWork) {
  int64_t calls = 0;
  const Pass pass = Timed([&calls] {
    ++calls;
    return absl::OkStatus();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const double first, pass());
  EXPECT_GT(calls, 10);
  EXPECT_LT(first, 1e-3);
  const int64_t repeats = calls;
  TESSERA_ASSERT_OK(pass().status());
  EXPECT_EQ(calls, 2 * repeats);
}

TEST(TimedTest, DoesNotRepeatLongWork) {
  int64_t calls = 0;
  const Pass pass = Timed([&calls] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return absl::OkStatus();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const double seconds, pass());
  EXPECT_EQ(calls, 1);
  EXPECT_GE(seconds, 3e-3);
}

TEST(StopwatchTest, ProcessorTimeExcludesWaiting) {
  const Stopwatch wall(TimeKind::kWall);
  const Stopwatch one(TimeKind::kProcessor);
  const Stopwatch four(TimeKind::kProcessor, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_GE(wall.Seconds(), 0.03);
  EXPECT_LT(one.Seconds(), 0.025);
  while (one.Seconds() < 0.02) {
  }
  EXPECT_GE(four.Seconds(), 0.004);
  EXPECT_LT(four.Seconds(), one.Seconds() / 2);
}

TEST(LimitTest, HasPlausibleBandwidths) {
  constexpr int64_t kBytes = 4 << 20;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Pass copy,
                               MemcpyPass(kBytes, TimeKind::kProcessor));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<offload::Triad> triad,
                               offload::Triad::Create(2, kBytes));
  for (const Pass& pass :
       {copy, TriadPass(triad, double{kBytes}, TimeKind::kWall),
        TriadPass(triad, double{kBytes}, TimeKind::kProcessor)}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const double seconds, pass());
    EXPECT_GT(kBytes / seconds, 1e6);
    EXPECT_LT(kBytes / seconds, 1e14);
  }
  EXPECT_THAT(MemcpyPass(INT64_MAX, TimeKind::kWall),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(WeightsTest, AreNormal) {
  constexpr int64_t kCount = 100'001;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Buffer weights,
                               NormalWeights(DType::kF64, kCount, 1));
  ASSERT_EQ(weights.size(), kCount * sizeof(double));
  const auto* values = reinterpret_cast<const double*>(weights.data());
  double moments[5] = {};
  int64_t within = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double value = values[i] / kDeviation;
    for (int power = 1; power <= 4; ++power) {
      moments[power] += std::pow(value, power) / kCount;
    }
    within += std::fabs(value) < 1;
  }
  EXPECT_NEAR(moments[1], 0, 0.02);
  EXPECT_NEAR(moments[2], 1, 0.02);
  EXPECT_NEAR(moments[3], 0, 0.05);
  EXPECT_NEAR(moments[4], 3, 0.1);
  EXPECT_NEAR(static_cast<double>(within) / kCount, 0.6827, 0.006);
}

TEST(WeightsTest, DependOnlyOnTheSeed) {
  const auto make = [](uint64_t seed) {
    const Buffer weights = NormalWeights(DType::kBF16, 5001, seed).value();
    return std::string(reinterpret_cast<const char*>(weights.data()),
                       weights.size());
  };
  EXPECT_EQ(make(1), make(1));
  EXPECT_NE(make(1), make(2));
  const auto bytes = [](uint64_t seed, int64_t count) {
    const Buffer random = RandomBytes(count, seed).value();
    return std::string(reinterpret_cast<const char*>(random.data()),
                       random.size());
  };
  EXPECT_EQ(bytes(1, 1003), bytes(1, 1003));
  EXPECT_NE(bytes(1, 1003), bytes(2, 1003));
  EXPECT_EQ(bytes(1, 1003).substr(0, 13), bytes(1, 13));
  EXPECT_EQ(bytes(1, 0), "");
}

using ::testing::Not;
using tools::OutputFormat;

Measurement Example() {
  Measurement m;
  m.what = "codecs";
  m.name = "lossless";
  m.operation = "encode";
  m.data = "bf16";
  m.block_bytes = m.bytes = 2'000'000;
  m.times = Compare({0.001}, {0.00025});
  m.limit = "memcpy";
  m.ratio = 1.5;
  m.error = 0.0;
  return m;
}

Measurement Step() {
  Measurement m;
  m.what = "optimizer";
  m.name = "adamw";
  m.operation = "step";
  m.data = "f32 moments, bf16 copy";
  m.threads = 2;
  m.block_bytes = 4096;
  m.bytes = 30720;
  m.times = Compare({0.002, 0.001, 0.003}, {0.001, 0.001, 0.001});
  m.limit = "triad";
  m.time = TimeKind::kProcessor;
  m.bytes_per_parameter = 30;
  m.note = "said \"so\"";
  return m;
}

std::string Printed(OutputFormat format,
                    const std::vector<Measurement>& measurements) {
  std::ostringstream out;
  MeasurementPrinter printer(format, out);
  for (const Measurement& m : measurements) printer.Print(m);
  printer.Finish();
  return out.str();
}

TEST(MeasurementTest, RatesCountBytes) {
  EXPECT_DOUBLE_EQ(Example().Rate(), 2.0);
  EXPECT_DOUBLE_EQ(Example().LimitRate(), 8.0);
}

TEST(PrintTest, CsvHasAHeaderAndQuotesTexts) {
  EXPECT_EQ(
      Printed(OutputFormat::kCsv, {Example(), Step()}),
      "what,name,operation,data,threads,block_bytes,bytes,turns,clock,time_us,"
      "GBps,spread,limit,limit_GBps,limit_spread,share,ratio,error,"
      "bytes_per_parameter,note\n"
      "codecs,lossless,encode,bf16,1,2000000,2000000,1,wall,1000,2,0,"
      "memcpy,8,0,0.25,1.5,0,,\n"
      "optimizer,adamw,step,\"f32 moments, bf16 copy\",2,4096,30720,"
      "3,processor,2000,0.01536,0.5,triad,0.03072,0,0.5,,,30,"
      "\"said \"\"so\"\"\"\n");
}

TEST(PrintTest, JsonHasTheColumnsOfTheCsv) {
  const auto json = nlohmann::ordered_json::parse(
      Printed(OutputFormat::kJson, {Example(), Step()}));
  ASSERT_EQ(json["measurements"].size(), 2u);
  EXPECT_EQ(json["measurements"][0].size(), 20u);
  EXPECT_EQ(json["measurements"][0]["ratio"], 1.5);
  EXPECT_TRUE(json["measurements"][0]["bytes_per_parameter"].is_null());
  EXPECT_EQ(json["measurements"][1]["note"], "said \"so\"");
  EXPECT_EQ(nlohmann::json::parse(Printed(OutputFormat::kJson, {})),
            nlohmann::json::parse(R"({"measurements":[]})"));
}

TEST(PrintTest, TextHasAHeadingForEachPart) {
  const std::string text =
      Printed(OutputFormat::kText, {Example(), Example(), Step()});
  EXPECT_EQ(text.find("codecs, by wall time\n"), 0u);
  EXPECT_EQ(text.find("codecs, by", 1), std::string::npos);
  EXPECT_THAT(text, HasSubstr("\n\noptimizer, by processor time\n"));
  EXPECT_THAT(text, HasSubstr("0.250  ratio 1.500  exact\n"));
  EXPECT_THAT(text, HasSubstr("30 B a parameter  said \"so\"\n"));
  EXPECT_THAT(text, Not(HasSubstr("error")));
  Measurement lossy = Example();
  lossy.error = 0.0043;
  EXPECT_THAT(Printed(OutputFormat::kText, {lossy}), HasSubstr("error 0.0043"));
}

}  // namespace

}  // namespace tessera::offload_bench
