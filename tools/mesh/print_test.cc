#include "tools/mesh/print.h"

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
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

std::string Draw(std::string mesh, std::string axes) {
  MeshOptions options;
  options.mesh = std::move(mesh);
  options.axes = std::move(axes);
  return *DrawSvg(*MakeReport(options));
}

struct Cell {
  std::string place;
  std::string colour;
  std::string group;
};

// Returns the part of `text` between `begin` and `end`.
std::string Between(std::string_view text, std::string_view begin,
                    std::string_view end) {
  const size_t from = text.find(begin) + begin.size();
  return std::string(text.substr(from, text.find(end, from) - from));
}

// The cells of a picture, found by their tooltips: "rank 5: tp1 dp0; NAME".
std::vector<Cell> CellsOf(const std::string& svg) {
  std::vector<Cell> cells;
  for (std::string_view rect : absl::StrSplit(svg, "<rect ")) {
    const std::string tooltip = Between(rect, "<title>", "</title>");
    if (!absl::StartsWith(tooltip, "rank ")) continue;
    cells.push_back(
        {Between(rect, "x=\"", "\"") + "," + Between(rect, " y=\"", "\""),
         Between(rect, "fill=\"", "\""),
         tooltip.substr(tooltip.find("; ") + 2)});
  }
  return cells;
}

TEST(DrawTest, EveryRankHasItsOwnPlaceAndItsGroupsColour) {
  for (const char* mesh :
       {"tp2,cp3,dp2,pp2,ep2", "dp7", "tp1,dp1", "tp4,pp4"}) {
    const std::vector<Cell> cells =
        CellsOf(Draw(mesh, std::string(mesh).substr(0, 2)));
    std::set<std::string> places;
    std::map<std::string, std::string> colour_of;
    std::set<std::string> colours;
    for (const Cell& cell : cells) {
      EXPECT_TRUE(places.insert(cell.place).second) << cell.place;
      EXPECT_EQ(colour_of.emplace(cell.group, cell.colour).first->second,
                cell.colour);
      colours.insert(cell.colour);
    }
    EXPECT_EQ(static_cast<int64_t>(cells.size()),
              topology::Mesh::Create(*topology::ParseAxes(mesh))->world_size());
    EXPECT_EQ(colours.size(), colour_of.size());
  }
}

TEST(DrawTest, LabelsAxesAndTruncatesLegend) {
  const std::string svg = Draw("tp2,dp64,pp2", "tp");
  EXPECT_THAT(svg, HasSubstr("tp2,dp64,pp2 coloured by tp group"));
  EXPECT_THAT(svg, HasSubstr("across: tp, then blocks of pp; down: dp"));
  EXPECT_THAT(svg, HasSubstr("... and 104 more"));
}

TEST(DrawTest, RejectsMeshTooLargeToDraw) {
  MeshOptions options;
  options.mesh = "dp16385";
  EXPECT_THAT(
      DrawSvg(*MakeReport(options)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 16384")));
}

}  // namespace

}  // namespace tessera::tools
