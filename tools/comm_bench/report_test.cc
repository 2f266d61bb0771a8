#include "tools/comm_bench/report.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::tools {
namespace {

using collectives::OpKind;
using ::testing::HasSubstr;

Row MakeRow(std::string engine, std::string algorithm, int64_t bytes,
            double seconds) {
  Row row;
  row.engine = std::move(engine);
  row.algorithm = std::move(algorithm);
  row.world = 4;
  row.bytes = bytes;
  row.iterations = 20;
  row.seconds = seconds;
  return row;
}

std::vector<Row> Example() {
  std::vector<Row> rows = {MakeRow("shared_memory", "engine", 1 << 20, 1e-3),
                           MakeRow("mpi \"x\"", "ring", 1 << 20, 2e-3)};
  rows[1].ratio = 2;
  for (Row& row : rows) row.bound_seconds = 5e-4;
  rows[0].hidden = HiddenShare(2e-3, 1e-3, 2.5e-3);
  rows[0].chosen = "ring";
  rows[0].regret = 1.25;
  return rows;
}

std::string Printed(OutputFormat format, const std::vector<Row>& rows) {
  std::ostringstream out;
  RowPrinter printer(format, out);
  if (!rows.empty()) printer.Print(rows);
  printer.Finish();
  return out.str();
}

TEST(RowTest, BandwidthsAreThoseOfNcclTests) {
  Row row = MakeRow("x", "engine", 1'000'000, 1e-3);
  EXPECT_DOUBLE_EQ(row.AlgorithmBandwidth(), 1.0);
  EXPECT_DOUBLE_EQ(row.BusBandwidth(), 1.5);
  row.op = OpKind::kAllGather;
  EXPECT_DOUBLE_EQ(row.BusBandwidth(), 0.75);
  row.op = OpKind::kBroadcast;
  EXPECT_DOUBLE_EQ(row.BusBandwidth(), 1.0);
  row.seconds = 0;
  EXPECT_EQ(row.BusBandwidth(), 0);
}

TEST(RowTest, ShareIsTheBoundOverTheTime) {
  EXPECT_DOUBLE_EQ(Example()[0].Share().value(), 0.5);
  EXPECT_FALSE(MakeRow("x", "engine", 1, 1).Share().has_value());
}

TEST(RowTest, HiddenIsOfTheShorterPart) {
  EXPECT_DOUBLE_EQ(HiddenShare(2, 1, 2), 1.0);
  EXPECT_DOUBLE_EQ(HiddenShare(2, 1, 3), 0.0);
  EXPECT_DOUBLE_EQ(HiddenShare(1, 2, 2.5), 0.5);
  EXPECT_EQ(HiddenShare(0, 2, 2.5), 0.0);
}

TEST(PrintTest, CsvIsExactlyTheseColumns) {
  EXPECT_EQ(kCsvHeader,
            "engine,algorithm,op,dtype,world,bytes,iterations,time_us,"
            "algbw_GBps,busbw_GBps,ratio");
  const std::string csv =
      Printed(OutputFormat::kCsv, {MakeRow("gloo", "tree", 1'000'000, 1e-3)});
  EXPECT_EQ(csv, std::string(kCsvHeader) +
                     "\ngloo,tree,all_reduce,f32,4,1000000,20,1000.0000,1,1.5,"
                     "1.0000\n");
}

TEST(PrintTest, TheHeaderComesOnce) {
  std::ostringstream out;
  RowPrinter printer(OutputFormat::kCsv, out);
  printer.Print(Example());
  printer.Print(Example());
  printer.Finish();
  const std::vector<std::string> lines = absl::StrSplit(out.str(), '\n');
  EXPECT_EQ(lines.size(), 6u);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), kCsvHeader), 1);
}

TEST(PrintTest, JsonHoldsEverythingThatWasMeasured) {
  const auto json =
      nlohmann::json::parse(Printed(OutputFormat::kJson, Example()));
  ASSERT_EQ(json["rows"].size(), 2u);
  const auto& first = json["rows"][0];
  for (const std::string& column :
       std::vector<std::string>(absl::StrSplit(kCsvHeader, ','))) {
    EXPECT_TRUE(first.contains(column)) << column;
  }
  EXPECT_EQ(first["engine"], "shared_memory");
  EXPECT_EQ(first["bytes"], 1 << 20);
  EXPECT_DOUBLE_EQ(first["share"], 0.5);
  EXPECT_DOUBLE_EQ(first["hidden"], 0.5);
  EXPECT_EQ(first["chosen"], "ring");
  EXPECT_DOUBLE_EQ(first["regret"], 1.25);
  EXPECT_EQ(json["rows"][1]["engine"], "mpi \"x\"");
  EXPECT_TRUE(json["rows"][1]["hidden"].is_null());
  EXPECT_EQ(json["regret"].size(), 2u);
}

TEST(PrintTest, RowsCanBeReadFromTheirJson) {
  for (const Row& row : Example()) {
    const Row read = RowFromJson(RowToJson(row));
    EXPECT_EQ(RowToJson(read), RowToJson(row));
    EXPECT_EQ(read.chosen, row.chosen);
    EXPECT_EQ(read.hidden, row.hidden);
    EXPECT_DOUBLE_EQ(read.seconds, row.seconds);
  }
}

TEST(PrintTest, JsonWithoutRowsParses) {
  const auto json = nlohmann::json::parse(Printed(OutputFormat::kJson, {}));
  EXPECT_TRUE(json["rows"].empty());
}

TEST(PrintTest, TextShowsRatioAndShare) {
  const std::string text = Printed(OutputFormat::kText, Example());
  EXPECT_THAT(text, HasSubstr("all_reduce of f32, 4 ranks"));
  EXPECT_THAT(text, HasSubstr("2.00"));
  EXPECT_THAT(text, HasSubstr("50%"));
  EXPECT_THAT(text, HasSubstr("chosen ring, regret 1.25"));
}

TEST(RegretTest, IsTheTimeOfTheChosenOverTheFastest) {
  std::vector<Row> rows = {
      MakeRow("a", "engine", 8, 3e-6), MakeRow("a", "ring", 8, 2e-6),
      MakeRow("b", "engine", 8, 1e-6), MakeRow("b", "ring", 8, 9e-6)};
  SetChoice(rows, "a", "engine");
  SetChoice(rows, "b", "engine");
  EXPECT_DOUBLE_EQ(rows[0].regret, 1.5);
  EXPECT_FALSE(rows[1].chosen.has_value());
  EXPECT_DOUBLE_EQ(rows[2].regret, 1.0);
  SetChoice(rows, "a", "nothing that was timed");
  EXPECT_EQ(rows[0].chosen, "engine");
}

TEST(RegretTest, SummarisesByOperationAndOverAll) {
  std::vector<Row> rows;
  for (int i = 1; i <= 100; ++i) {
    rows.push_back(MakeRow("a", "engine", i, 1e-6));
    rows.back().chosen = "engine";
    rows.back().regret = 1 + i / 100.0;
  }
  rows.push_back(MakeRow("a", "engine", 8, 1e-6));
  rows.back().op = OpKind::kBroadcast;
  rows.back().chosen = "tree";
  rows.back().regret = 3;
  const std::vector<RegretSummary> summaries = SummariseRegret(rows);
  ASSERT_EQ(summaries.size(), 3u);
  EXPECT_EQ(summaries[0].op, "all_reduce");
  EXPECT_EQ(summaries[0].cases, 100);
  EXPECT_DOUBLE_EQ(summaries[0].p95, 1.95);
  EXPECT_DOUBLE_EQ(summaries[0].max, 2.0);
  EXPECT_EQ(summaries[2].op, "all");
  EXPECT_EQ(summaries[2].max, 3);
  EXPECT_THAT(summaries[2].worst, HasSubstr("broadcast of 8B: tree"));
  EXPECT_TRUE(SummariseRegret({}).empty());
}

}  // namespace
}  // namespace tessera::tools
