#include "tools/mesh/print.h"

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::tools {

namespace {

using ::testing::HasSubstr;

std::string Print(const MeshOptions& options, OutputFormat format) {
  std::ostringstream out;
  PrintReport(*MakeReport(options), format, out);
  return out.str();
}

MeshOptions Example() {
  MeshOptions options;
  options.mesh = "tp2,dp2,pp4";
  options.order = "tp-cp-ep-dp-pp";
  options.axes = "tp,pp";
  return options;
}

TEST(PrintTest, JsonHasDocumentedKeys) {
  const auto json =
      nlohmann::json::parse(Print(Example(), OutputFormat::kJson));
  EXPECT_EQ(json["axes"], nlohmann::json::parse(R"({"tp":2,"dp":2,"pp":4})"));
  EXPECT_EQ(json["order"], "tp-cp-ep-dp-pp");
  EXPECT_EQ(json["world_size"], 16);
  EXPECT_EQ(json["along"], nlohmann::json::parse(R"(["tp","pp"])"));
  EXPECT_EQ(json["groups"], nlohmann::json::parse(
                                "[[0,1,4,5,8,9,12,13],[2,3,6,7,10,11,14,15]]"));
  EXPECT_EQ(json["group_names"][1], "tp-pp_group_dp1");
  ASSERT_EQ(json["ranks"].size(), 16u);
  for (int rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(json["ranks"][static_cast<size_t>(rank)],
              (nlohmann::json{
                  {"tp", rank % 2}, {"dp", rank / 2 % 2}, {"pp", rank / 4}}));
  }
}

TEST(PrintTest, JsonOfOneRankHoldsOnlyItsOwn) {
  MeshOptions options = Example();
  options.rank = 6;
  const auto json = nlohmann::json::parse(Print(options, OutputFormat::kJson));
  EXPECT_EQ(json["rank"], 6);
  EXPECT_EQ(json["description"], "TP(2)-CP(1)-PP(4)-DP(2)-Rank(6)");
  EXPECT_EQ(json["groups"], nlohmann::json::parse("[[2,3,6,7,10,11,14,15]]"));
  EXPECT_EQ(json["ranks"],
            nlohmann::json::parse(R"([{"tp":0,"dp":1,"pp":1}])"));
}

TEST(PrintTest, CsvHasARowForEachRank) {
  MeshOptions options = Example();
  options.axes = "";
  const std::vector<std::string> lines =
      absl::StrSplit(Print(options, OutputFormat::kCsv), '\n');
  ASSERT_EQ(lines.size(), 18u);
  EXPECT_EQ(lines[0], "rank,tp,dp,pp,tp_group,dp_group,pp_group");
  EXPECT_EQ(lines[7],
            "6,0,1,1,tp_group_dp1_pp1,dp_group_tp0_pp1,"
            "pp_group_dp1_tp0");
  EXPECT_EQ(lines[17], "");
}

TEST(PrintTest, TextShowsRanksGroupsAndNeighbours) {
  MeshOptions options = Example();
  EXPECT_THAT(Print(options, OutputFormat::kText),
              HasSubstr("16 ranks: tp 2 x dp 2 x pp 4 (tp fastest)"));
  EXPECT_THAT(Print(options, OutputFormat::kText),
              HasSubstr("  tp-pp_group_dp0: 0 1 4 5 8 9 12 13\n"));
  options.rank = 0;
  options.axes = "pp";
  options.split = "pp:near2,far2";
  const std::string text = Print(options, OutputFormat::kText);
  EXPECT_THAT(text, HasSubstr("previous: none, next: 4, head: 0, tail: 12"));
  EXPECT_THAT(text, HasSubstr("also divided as tp2,dp2,near2,far2"));
}

TEST(PrintTest, AGridHasRowsAndColumns) {
  MeshOptions options = Example();
  options.grid = "dp/tp";
  EXPECT_THAT(Print(options, OutputFormat::kText),
              HasSubstr("grid dp / tp, the last one across\n0 1\n2 3\n"));
  options.rank = 5;
  const auto json = nlohmann::json::parse(Print(options, OutputFormat::kJson));
  EXPECT_EQ(json["grid"], nlohmann::json::parse(R"({"axes":["dp","tp"],
                              "shape":[2,2],"ranks":[4,5,6,7]})"));
}

}  // namespace

}  // namespace tessera::tools
