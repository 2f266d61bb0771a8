#include "tools/offload_bench/print.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/cli/output_format.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {
namespace {

using ::testing::HasSubstr;
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

TEST(MeasurementTest, RatesAreOfTheCountedBytes) {
  EXPECT_DOUBLE_EQ(Example().Rate(), 2.0);
  EXPECT_DOUBLE_EQ(Example().LimitRate(), 8.0);
}

TEST(PrintTest, CsvHasAHeaderAndQuotesWhatNeedsIt) {
  EXPECT_EQ(
      Printed(OutputFormat::kCsv, {Example(), Step()}),
      std::string(kColumns) +
          "\ncodecs,lossless,encode,bf16,1,2000000,2000000,1,wall,1000,2,0,"
          "memcpy,8,0,0.25,1.5,0,,\n"
          "optimizer,adamw,step,\"f32 moments, bf16 copy\",2,4096,30720,"
          "3,processor,2000,0.01536,0.5,triad,0.03072,0,0.5,,,30,"
          "\"said \"\"so\"\"\"\n");
}

TEST(PrintTest, JsonHasTheColumnsOfTheCsv) {
  const auto json = nlohmann::ordered_json::parse(
      Printed(OutputFormat::kJson, {Example(), Step()}));
  ASSERT_EQ(json["measurements"].size(), 2u);
  std::string columns;
  for (const auto& [name, value] : json["measurements"][0].items()) {
    columns += (columns.empty() ? "" : ",") + name;
  }
  EXPECT_EQ(columns, kColumns);
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
