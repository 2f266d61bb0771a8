#include "tools/mesh/draw.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "topology/group_name.h"

namespace tessera::tools {
namespace {

using topology::Axis;
using topology::Rank;

constexpr double kCell = 34;  // Side of a cell, in pixels.
constexpr double kGap = 4;    // Between cells; doubled at each level.
constexpr double kMargin = 24;
constexpr double kLineHeight = 18;
constexpr int64_t kMaxLegendRows = 24;
constexpr double kLegendWidth = 420;

// The steps between neighbours along each axis, in pixels.
struct GridLayout {
  std::vector<double> across;  // For each axis, 0 where it goes down.
  std::vector<double> down;
  double width = kCell;
  double height = kCell;
};

GridLayout LayOut(std::span<const Axis> axes) {
  GridLayout layout;
  double gap_across = kGap;
  double gap_down = kGap;
  bool is_across = true;
  for (const Axis& axis : axes) {
    double& extent = is_across ? layout.width : layout.height;
    double& gap = is_across ? gap_across : gap_down;
    const double step = axis.size.value() == 1 ? 0 : extent + gap;
    layout.across.push_back(is_across ? step : 0);
    layout.down.push_back(is_across ? 0 : step);
    if (axis.size.value() == 1) continue;  // It takes no direction of its own.
    extent += step * static_cast<double>(axis.size.value() - 1);
    gap *= 3;
    is_across = !is_across;
  }
  return layout;
}

// A colour for each group, far apart for groups near in number: the golden
// angle around the colour circle.
std::string ColourOf(int64_t group) {
  const double hue = std::fmod(static_cast<double>(group) * 137.508 + 205, 360);
  return absl::StrFormat("hsl(%.0f,65%%,%d%%)", hue, 70 + 6 * (group % 3));
}

// "tp1 dp0 pp1".
std::string Place(const MeshReport& report, Rank rank) {
  return absl::StrJoin(
      report.axes, " ", [&](std::string* text, const std::string& axis) {
        absl::StrAppend(text, axis, *report.mesh.CoordinateOf(rank, axis));
      });
}

void AppendText(std::string* svg, double x, double y, std::string_view style,
                std::string_view text) {
  absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y,
                        style, text);
}

void AppendSquare(std::string* svg, double x, double y, double side,
                  const std::string& colour, std::string_view tooltip) {
  absl::StrAppendFormat(
      svg,
      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"4\" "
      "fill=\"%s\" stroke=\"#555\" stroke-width=\"0.6\"><title>%s</title>"
      "</rect>\n",
      x, y, side, side, colour, tooltip);
}

// Which axes go which way, in words.
std::string Caption(const MeshReport& report, const GridLayout& layout) {
  std::vector<std::string> across, down;
  for (size_t i = 0; i < layout.across.size(); ++i) {
    const std::string& name = report.mesh.axes()[i].name;
    if (layout.across[i] > 0) across.push_back(name);
    if (layout.down[i] > 0) down.push_back(name);
  }
  const auto words = [](const std::vector<std::string>& names) {
    return names.empty() ? "nothing"
                         : absl::StrJoin(names, ", then blocks of ");
  };
  return absl::StrCat("across: ", words(across), "; down: ", words(down));
}

void AppendCells(const MeshReport& report, const GridLayout& layout, double top,
                 std::string* svg) {
  const Listing& listing = report.listings.front();
  for (int64_t i = 0; i < report.mesh.world_size(); ++i) {
    const Rank rank = report.mesh.first_rank() + i;
    const topology::Coordinates at = *report.mesh.CoordinatesOf(rank);
    double x = kMargin;
    double y = top;
    for (size_t axis = 0; axis < at.size(); ++axis) {
      x += layout.across[axis] * static_cast<double>(at[axis]);
      y += layout.down[axis] * static_cast<double>(at[axis]);
    }
    AppendSquare(
        svg, x, y, kCell, ColourOf(*listing.groups.GroupOf(rank)),
        absl::StrCat("rank ", rank.value(), ": ", Place(report, rank), "; ",
                     *GroupName(report.mesh, listing.axes, rank)));
    AppendText(svg, x + kCell / 2, y + kCell / 2 + 4,
               "text-anchor=\"middle\" class=\"rank\"",
               absl::StrCat(rank.value()));
  }
}

// The members, as many as fit a legend's line.
std::string Members(const std::vector<Rank>& members) {
  constexpr size_t kMost = 12;
  const size_t shown = std::min(kMost, members.size());
  return absl::StrCat(
      absl::StrJoin(members.begin(),
                    members.begin() + static_cast<ptrdiff_t>(shown), " ",
                    [](std::string* text, Rank rank) {
                      absl::StrAppend(text, rank.value());
                    }),
      members.size() > kMost ? " ..." : "");
}

void AppendLegend(const MeshReport& report, double x, double top,
                  std::string* svg) {
  const Listing& listing = report.listings.front();
  const int64_t rows = std::min(listing.groups.count(), kMaxLegendRows);
  for (int64_t group = 0; group < rows; ++group) {
    const std::vector<Rank> members = *listing.groups.Members(group);
    const double y = top + kLineHeight * static_cast<double>(group);
    AppendSquare(svg, x, y, 12, ColourOf(group), "");
    AppendText(
        svg, x + 20, y + 11, "class=\"note\"",
        absl::StrCat(*GroupName(report.mesh, listing.axes, members.front()),
                     ": ", Members(members)));
  }
  if (rows < listing.groups.count()) {
    AppendText(
        svg, x + 20, top + kLineHeight * static_cast<double>(rows) + 11,
        "class=\"note\"",
        absl::StrCat("... and ", listing.groups.count() - rows, " more"));
  }
}

}  // namespace

absl::StatusOr<std::string> DrawSvg(const MeshReport& report) {
  if (report.mesh.world_size() > kMaxDrawnRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a picture of ", report.mesh.world_size(), " ranks; at most ",
        kMaxDrawnRanks, " can be drawn, so draw a smaller mesh"));
  }
  const GridLayout layout = LayOut(report.mesh.axes());
  const Listing& listing = report.listings.front();
  const double top = kMargin + 3 * kLineHeight;
  const double legend_rows =
      static_cast<double>(std::min(listing.groups.count(), kMaxLegendRows + 1));
  const double height =
      top + std::max(layout.height, legend_rows * kLineHeight) + kMargin;
  const double legend_x = kMargin + layout.width + kMargin;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
      "height=\"%.0f\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n"
      "<style>.title{font-size:16px;font-weight:bold}.note{font-size:12px}"
      ".rank{font-size:11px}</style>\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      legend_x + kLegendWidth + kMargin, height);
  AppendText(&svg, kMargin, kMargin + 12, "class=\"title\"",
             absl::StrCat(FormatAxes(report.mesh.axes()), " coloured by ",
                          listing.axes, " group"));
  AppendText(&svg, kMargin, kMargin + 12 + kLineHeight, "class=\"note\"",
             Caption(report, layout));
  AppendCells(report, layout, top, &svg);
  AppendLegend(report, legend_x, top, &svg);
  absl::StrAppend(&svg, "</svg>\n");
  return svg;
}

}  // namespace tessera::tools
