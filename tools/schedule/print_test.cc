#include "tools/schedule/print.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

ScheduleOptions Options(std::vector<std::string> schedules) {
  ScheduleOptions options;
  options.schedules = std::move(schedules);
  options.shape.stages = 2;
  options.shape.microbatches = 3;
  return options;
}

ScheduleOptions Input(const std::string& text) {
  ScheduleOptions options;
  options.input = ::testing::TempDir() + "/input";
  std::ofstream(options.input) << text;
  return options;
}

std::string Print(const ScheduleOptions& options, OutputFormat format) {
  std::ostringstream out;
  PrintOptions print;
  print.format = format;
  EXPECT_THAT(PrintReports(*MakeReports(options), print, out), IsOk());
  return out.str();
}

TEST(PrintTest, JsonHasDocumentedKeys) {
  ScheduleOptions options = Options({"1f1b"});
  options.costs.times = "1,1,1,0";
  options.costs.memory = "100,-60,-40";
  options.memory_limit = 150;
  const Json json = Json::parse(Print(options, OutputFormat::kJson));
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["stages"], 2);
  EXPECT_EQ(json["microbatches"], 3);
  EXPECT_EQ(json["valid"], true);
  EXPECT_EQ(json["unit"], "ms");
  EXPECT_EQ(json["makespan"], 12);
  EXPECT_EQ(json["longest_stage"], 12);
  EXPECT_EQ(json["bubble_rate"], 0.25);
  EXPECT_LE(json["lower_bound"].get<double>(), 12);
  EXPECT_EQ(json["peak_memory"], Json::parse("[200,100]"));
  EXPECT_EQ(json["peak_activations"], Json::parse("[2,1]"));
  EXPECT_EQ(json["idle"], Json::parse("[0.25,0.25]"));
  EXPECT_EQ(json["memory_limit"], 150);
  EXPECT_EQ(json["exceeds_limit"], Json::parse("[0]"));
  EXPECT_EQ(json["ranks"],
            Json::parse(R"([["0F0","0F1","0B0","0F2","0B1","0B2"],
                            ["1F0","1B0","1F1","1B1","1F2","1B2"]])"));
  EXPECT_FALSE(json.contains("error"));
  EXPECT_GT(json["critical_path"].size(), 5u);
}

TEST(PrintTest, JsonOfPairsHasThemAsOneCell) {
  ScheduleOptions options = Options({"dualpipe"});
  options.shape.microbatches = 8;
  EXPECT_THAT(Print(options, OutputFormat::kJson), HasSubstr(")OVERLAP_F_B\""));
}

TEST(PrintTest, JsonIsReadAgain) {
  for (const char* name : {"1f1b", "zb_v", "dualpipe"}) {
    const ScheduleOptions options = Options({name});
    const std::string text = Print(options, OutputFormat::kJson);
    const auto made = *MakeReports(options);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto read, MakeReports(Input(text)));
    EXPECT_THAT(read[0].validity, IsOk());
    EXPECT_EQ(read[0].schedule, made[0].schedule);
  }
}

TEST(PrintTest, JsonOfSeveralIsTheirList) {
  const Json json =
      Json::parse(Print(Options({"1f1b", "auto"}), OutputFormat::kJson));
  ASSERT_EQ(json["schedules"].size(), 2u);
  EXPECT_EQ(json["schedules"][1]["schedule"], "auto");
  EXPECT_FALSE(json["schedules"][1]["origin"].get<std::string>().empty());
}

TEST(PrintTest, JsonExplainsInvalidSchedule) {
  const Json json =
      Json::parse(Print(Input("0F0,0B0\n1B0,1F0\n"), OutputFormat::kJson));
  EXPECT_EQ(json["valid"], false);
  EXPECT_THAT(json["error"].get<std::string>(), HasSubstr("1B0"));
  EXPECT_TRUE(json["makespan"].is_null());
  EXPECT_TRUE(json["bubble_rate"].is_null());
  EXPECT_EQ(json["peak_memory"], Json::array());
  EXPECT_EQ(json["ranks"][1], Json::parse(R"(["1B0","1F0"])"));
  const Json none = Json::parse(Print(Input("word\xff"), OutputFormat::kJson));
  EXPECT_EQ(none["valid"], false);
  EXPECT_FALSE(none["error"].get<std::string>().empty());
}

TEST(PrintTest, CsvOfOneIsPyTorchTable) {
  EXPECT_EQ(Print(Options({"1f1b"}), OutputFormat::kCsv),
            "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
}

TEST(PrintTest, CsvOfSeveralIsTheComparison) {
  const std::vector<std::string> lines = absl::StrSplit(
      Print(Options({"gpipe", "1f1b", "zb_h1"}), OutputFormat::kCsv), '\n');
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0],
            "schedule,stages,chunks,microbatches,valid,makespan,longest_stage,"
            "bubble_rate,peak_memory,peak_activations,lower_bound,gap,"
            "exceeds_limit");
  EXPECT_THAT(lines[2], StartsWith("1f1b,2,1,3,yes,12,12,0.2500,2,2,"));
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(lines[i], ',')).size(),
              13u);
  }
}

TEST(PrintTest, TextDescribesAndDrawsSchedule) {
  ScheduleOptions options = Options({"1f1b"});
  options.memory_limit = 1;
  const std::string text = Print(options, OutputFormat::kText);
  EXPECT_THAT(
      text,
      AllOf(StartsWith("1f1b: 2 stages, 3 micro-batches; arXiv 2104.04473\n"
                       "valid: "),
            HasSubstr("makespan 12 ms, longest stage 12 ms, bubble rate "
                      "0.2500\n"),
            HasSubstr("memory limit 1: exceeded by ranks 0\n"),
            HasSubstr("rank 0 |F0F1....B0--F2B1--..B2--|  25.0 %\n")));
}

TEST(PrintTest, TextOfSeveralIsATableInColumns) {
  const std::string text =
      Print(Options({"1f1b", "interleaved_1f1b"}), OutputFormat::kText);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  ASSERT_GE(lines.size(), 4u);
  EXPECT_THAT(lines[0], StartsWith("schedule          stages"));
  EXPECT_EQ(lines[0].size(), lines[1].size());
  EXPECT_EQ(lines[1].size(), lines[2].size());
  EXPECT_THAT(text, HasSubstr("--times_of=rank"));
  EXPECT_THAT(Print(Options({"1f1b", "gpipe"}), OutputFormat::kText),
              Not(HasSubstr("--times_of=rank")));
}

TEST(PrintTest, TextExplainsInvalidSchedule) {
  EXPECT_THAT(Print(Input("0F0,0B0\n1B0,1F0\n"), OutputFormat::kText),
              AllOf(HasSubstr("2 stages, 1 micro-batch;"),
                    HasSubstr("not valid: rank 1, action 0 (1B0)")));
  ScheduleOptions compared = Input("0F0,0B0\n1B0,1F0\n");
  compared.schedules = {"gpipe"};
  EXPECT_THAT(Print(compared, OutputFormat::kText),
              HasSubstr("not valid: rank 1, action 0 (1B0)"));
}

TEST(PrintTest, ACommaInANameIsQuoted) {
  ScheduleOptions options = Options({"1f1b"});
  std::vector<ScheduleReport> reports = *MakeReports(options);
  reports.push_back(reports[0]);
  reports[1].name = "a,\"b\"";
  std::ostringstream out;
  PrintOptions print;
  print.format = OutputFormat::kCsv;
  EXPECT_THAT(PrintReports(reports, print, out), IsOk());
  EXPECT_THAT(out.str(), HasSubstr("\n\"a,\"\"b\"\"\",2,1,3,yes"));
}

TEST(PrintTest, DrawsMicroBatchesWithoutBytes) {
  ScheduleOptions options = Options({"1f1b"});
  EXPECT_TRUE(
      ExhibitsOf(*MakeReports(options))[0].timeline.ranks[0].memory.empty());
  options.costs.memory = "100,-60,-40";
  options.memory_limit = 300;
  const auto exhibits = ExhibitsOf(*MakeReports(options));
  EXPECT_FALSE(exhibits[0].timeline.ranks[0].memory.empty());
  EXPECT_EQ(exhibits[0].memory_limit, 300);
  EXPECT_TRUE(ExhibitsOf(*MakeReports(Input("0F0\n"))).empty());
}

}  // namespace
}  // namespace tessera::tools
