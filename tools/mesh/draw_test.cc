#include "tools/mesh/draw.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;

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

// The text between `begin` and `end` in `text`.
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

TEST(DrawTest, SaysWhatGoesWhereAndCutsALongLegend) {
  const std::string svg = Draw("tp2,dp64,pp2", "tp");
  EXPECT_THAT(svg, HasSubstr("tp2,dp64,pp2 coloured by tp group"));
  EXPECT_THAT(svg, HasSubstr("across: tp, then blocks of pp; down: dp"));
  EXPECT_THAT(svg, HasSubstr("... and 104 more"));
}

TEST(DrawTest, RefusesAMeshTooLargeToDraw) {
  MeshOptions options;
  options.mesh = "dp16385";
  EXPECT_THAT(
      DrawSvg(*MakeReport(options)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 16384")));
}

}  // namespace
}  // namespace tessera::tools
