#include "tools/offload_bench/measurement.h"

#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/cli/cli.h"

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

using tools::OutputFormat;

Measurement Put() {
  return {.what = "file",
          .name = "file by io_uring",
          .operation = "put",
          .block_bytes = 4096,
          .bytes = 2'000'000,
          .times = Compare({0.002, 0.001, 0.003}, {0.001, 0.001, 0.001}),
          .limit = "device",
          .note = "said \"so\""};
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
  EXPECT_DOUBLE_EQ(Put().Rate(), 1.0);
  EXPECT_DOUBLE_EQ(Put().LimitRate(), 2.0);
}

TEST(PrintTest, CsvHasAHeaderAndQuotesTexts) {
  EXPECT_EQ(Printed(OutputFormat::kCsv, {Put(), Put()}),
            "what,name,operation,block_bytes,bytes,turns,time_us,GBps,spread,"
            "limit,limit_GBps,limit_spread,share,note\n"
            "file,file by io_uring,put,4096,2000000,3,2000,1,0.5,device,2,0,"
            "0.5,\"said \"\"so\"\"\"\n"
            "file,file by io_uring,put,4096,2000000,3,2000,1,0.5,device,2,0,"
            "0.5,\"said \"\"so\"\"\"\n");
}

TEST(PrintTest, JsonHasTheColumnsOfTheCsv) {
  const auto json =
      nlohmann::ordered_json::parse(Printed(OutputFormat::kJson, {Put()}));
  ASSERT_EQ(json["measurements"].size(), 1u);
  EXPECT_EQ(json["measurements"][0].size(), 14u);
  EXPECT_EQ(json["measurements"][0]["note"], "said \"so\"");
  EXPECT_EQ(nlohmann::json::parse(Printed(OutputFormat::kJson, {})),
            nlohmann::json::parse(R"({"measurements":[]})"));
}

TEST(PrintTest, TextHasOneHeading) {
  const std::string text = Printed(OutputFormat::kText, {Put(), Put()});
  EXPECT_EQ(text.find("file  "), 0u);
  EXPECT_EQ(text.find("share"), text.rfind("share"));
  EXPECT_THAT(text, HasSubstr("0.500  said \"so\"\n"));
}

}  // namespace

}  // namespace tessera::offload_bench
