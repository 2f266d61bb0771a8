#include "tools/mesh/draw.h"

#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>

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

// The cells of a picture, found by their tooltips.
std::vector<Cell> CellsOf(const std::string& svg) {
  static const std::regex cell(
      "<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\"[^>]*fill=\"([^\"]+)\"[^>]*>"
      "<title>rank [0-9]+: [^;]*; ([a-z0-9_-]+)</title>");
  std::vector<Cell> cells;
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), cell);
       it != std::sregex_iterator(); ++it) {
    cells.push_back(
        {(*it)[1].str() + "," + (*it)[2].str(), (*it)[3], (*it)[4]});
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
