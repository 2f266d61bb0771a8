#include "tools/mesh/print.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "pipeline/draw/svg_writer.h"
#include "tools/mesh/tensor_report.h"
#include "topology/device_mesh.h"
#include "topology/mesh.h"

namespace tessera::tools {

namespace {

using topology::Boundary;
using topology::Rank;

void AppendRank(std::string* out, Rank rank) {
  absl::StrAppend(out, rank.value());
}

int64_t Coordinate(const MeshReport& report, Rank rank,
                   const std::string& axis) {
  return *report.mesh.CoordinateOf(rank, axis);
}

// "tp" -> "tp", "tp,pp" -> "tp-pp".
std::string Joined(const std::string& axes) {
  return absl::StrReplaceAll(axes, {{",", "-"}});
}

std::vector<Rank> ListedRanks(const MeshReport& report) {
  std::vector<Rank> ranks;
  ForEachRank(report, [&](Rank rank) { ranks.push_back(rank); });
  return ranks;
}

// --- Text ---

void PrintHeading(const MeshReport& report, std::ostream& out) {
  out << report.mesh.world_size() << " ranks: "
      << absl::StrJoin(report.mesh.axes(), " x ",
                       [](std::string* text, const topology::Axis& axis) {
                         absl::StrAppend(text, axis.name, " ",
                                         axis.size.value());
                       });
  if (!report.mesh.axes().empty()) {
    out << " (" << report.mesh.axes().front().name << " fastest)";
  }
  out << "\n";
  for (size_t i = 1; i < report.mesh.division_count(); ++i) {
    out << "also divided as " << FormatAxes(report.mesh.division(i)) << "\n";
  }
}

void PrintRankTable(const MeshReport& report, std::ostream& out) {
  out << "\n    rank";
  for (const std::string& axis : report.axes) {
    out << absl::StrFormat(" %5s", axis);
  }
  out << "\n";
  ForEachRank(report, [&](Rank rank) {
    out << absl::StrFormat("%8d", rank.value());
    for (const std::string& axis : report.axes) {
      out << absl::StrFormat(" %*d",
                             std::max<int>(5, static_cast<int>(axis.size())),
                             Coordinate(report, rank, axis));
    }
    out << "\n";
  });
}

std::string Neighbour(const Listing& listing, Rank rank, int64_t steps) {
  const std::optional<Rank> neighbour =
      *listing.groups.Shift(rank, steps, Boundary::kOpen);
  return neighbour.has_value() ? absl::StrCat(neighbour->value()) : "none";
}

void PrintListing(const MeshReport& report, const Listing& listing,
                  std::ostream& out) {
  out << "\n"
      << Joined(listing.axes) << " groups: " << listing.groups.count() << " of "
      << listing.groups.size() << "\n";
  ForEachGroup(report, listing,
               [&](const std::string& name, const std::vector<Rank>& members) {
                 out << "  " << name << ": "
                     << absl::StrJoin(members, " ", AppendRank) << "\n";
               });
  if (report.rank.has_value()) {
    out << "  previous: " << Neighbour(listing, *report.rank, -1)
        << ", next: " << Neighbour(listing, *report.rank, 1)
        << ", head: " << *listing.groups.Head(*report.rank)
        << ", tail: " << *listing.groups.Tail(*report.rank) << "\n";
  }
}

void AppendDevice(std::string* out, topology::DeviceId device) {
  absl::StrAppend(out, device.value());
}

void AppendGridAxis(std::string* out,
                    const topology::DeviceMesh::GridAxis& axis) {
  absl::StrAppend(out, axis.name);
}

void PrintGridText(const topology::DeviceMesh& grid, std::ostream& out) {
  out << "\ngrid " << absl::StrJoin(grid.axes(), " / ", AppendGridAxis)
      << ", the last one across\n"
      << grid.ToString();
}

void PrintText(const MeshReport& report, std::ostream& out) {
  PrintHeading(report, out);
  if (report.rank.has_value()) {
    out << DescribeRank(report.mesh, *report.rank) << "\n";
  }
  PrintRankTable(report, out);
  for (const Listing& listing : report.listings) {
    PrintListing(report, listing, out);
  }
  if (report.grid.has_value()) PrintGridText(*report.grid, out);
  if (report.placement.has_value()) PrintPlacementText(*report.placement, out);
  if (report.tensor.has_value()) {
    PrintTensorText(*report.tensor, ListedRanks(report), out);
  }
}

// --- JSON --- Names consist of lower-case letters, digits, "-" and "_", which
// need no escaping.

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", text, "\"");
}

std::string CoordinatesObject(const MeshReport& report, Rank rank) {
  return absl::StrCat(
      "{",
      absl::StrJoin(report.axes, ",",
                    [&](std::string* text, const std::string& axis) {
                      absl::StrAppend(text, Quoted(axis), ":",
                                      Coordinate(report, rank, axis));
                    }),
      "}");
}

void PrintGroupLists(const MeshReport& report, const Listing& listing,
                     std::ostream& out) {
  out << ",\n\"along\":[\""
      << absl::StrReplaceAll(listing.axes, {{",", "\",\""}})
      << "\"],\n\"groups\":[";
  const char* separator = "";
  ForEachGroup(report, listing,
               [&](const std::string&, const std::vector<Rank>& members) {
                 out << separator << "["
                     << absl::StrJoin(members, ",", AppendRank) << "]";
                 separator = ",";
               });
  out << "],\n\"group_names\":[";
  separator = "";
  ForEachGroup(report, listing,
               [&](const std::string& name, const std::vector<Rank>&) {
                 out << separator << Quoted(name);
                 separator = ",";
               });
  out << "]";
}

void PrintGridJson(const topology::DeviceMesh& grid, std::ostream& out) {
  out << ",\n\"grid\":{\"axes\":[\""
      << absl::StrJoin(grid.axes(), "\",\"", AppendGridAxis)
      << "\"],\"shape\":["
      << absl::StrJoin(
             grid.axes(), ",",
             [](std::string* text, const topology::DeviceMesh::GridAxis& axis) {
               absl::StrAppend(text, axis.size);
             })
      << "],\"ranks\":[" << absl::StrJoin(grid.devices(), ",", AppendDevice)
      << "]}";
}

void PrintJson(const MeshReport& report, std::ostream& out) {
  out << "{\"axes\":{"
      << absl::StrJoin(report.mesh.axes(), ",",
                       [](std::string* text, const topology::Axis& axis) {
                         absl::StrAppend(text, Quoted(axis.name), ":",
                                         axis.size.value());
                       })
      << "},\n\"order\":" << Quoted(report.order)
      << ",\n\"world_size\":" << report.mesh.world_size();
  if (report.rank.has_value()) {
    out << ",\n\"rank\":" << *report.rank << ",\n\"description\":"
        << Quoted(DescribeRank(report.mesh, *report.rank));
  }
  if (report.grid.has_value()) PrintGridJson(*report.grid, out);
  if (report.placement.has_value()) {
    out << ",\n\"placement\":";
    PrintPlacementJson(*report.placement, out);
  }
  if (report.tensor.has_value()) {
    out << ",\n\"tensor\":";
    PrintTensorJson(*report.tensor, ListedRanks(report), out);
  }
  PrintGroupLists(report, report.listings.front(), out);
  out << ",\n\"ranks\":[";
  const char* separator = "";
  ForEachRank(report, [&](Rank rank) {
    out << separator << CoordinatesObject(report, rank);
    separator = ",";
  });
  out << "]}\n";
}

// --- CSV ---

void PrintCsv(const MeshReport& report, std::ostream& out) {
  out << "rank";
  for (const std::string& axis : report.axes) out << "," << axis;
  for (const Listing& listing : report.listings) {
    out << "," << Joined(listing.axes) << "_group";
  }
  out << "\n";
  ForEachRank(report, [&](Rank rank) {
    out << rank;
    for (const std::string& axis : report.axes) {
      out << "," << Coordinate(report, rank, axis);
    }
    for (const Listing& listing : report.listings) {
      out << "," << *GroupName(report.mesh, listing.axes, rank);
    }
    out << "\n";
  });
}

}  // namespace

void PrintReport(const MeshReport& report, OutputFormat format,
                 std::ostream& out) {
  switch (format) {
    case OutputFormat::kText:
      return PrintText(report, out);
    case OutputFormat::kJson:
      return PrintJson(report, out);
    case OutputFormat::kCsv:
      return PrintCsv(report, out);
  }
}

namespace {

using topology::Axis;

constexpr double kCell = 34;  // Side of a cell, in pixels.
constexpr double kGap = 4;    // Between cells; tripled at each level.
constexpr double kMargin = 24;
constexpr double kLineHeight = 18;
constexpr int64_t kMaxLegendRows = 24;
constexpr double kLegendWidth = 420;

// The distances between neighbours along each axis, in pixels.
struct GridLayout {
  std::vector<double> across;  // For each axis; 0 if it is vertical.
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
    if (axis.size.value() == 1) continue;  // It does not use up a direction.
    extent += step * static_cast<double>(axis.size.value() - 1);
    gap *= 3;
    is_across = !is_across;
  }
  return layout;
}

// A colour for each group. Steps of the golden angle on the colour circle
// separate the colours of consecutive groups.
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

void DrawSquare(pipeline::SvgWriter& svg, double x, double y, double side,
                const std::string& colour, std::string_view tooltip) {
  svg.Box({.x = x,
           .y = y,
           .width = side,
           .height = side,
           .fill = colour,
           .stroke = "#555"},
          tooltip);
}

// Describes the axes of each direction.
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

void DrawCells(const MeshReport& report, const GridLayout& layout, double top,
               pipeline::SvgWriter& svg) {
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
    DrawSquare(svg, x, y, kCell, ColourOf(*listing.groups.GroupOf(rank)),
               absl::StrCat("rank ", rank.value(), ": ", Place(report, rank),
                            "; ", *GroupName(report.mesh, listing.axes, rank)));
    svg.Text({.x = x + kCell / 2, .y = y + kCell / 2 + 4, .classes = "middle"},
             absl::StrCat(rank.value()));
  }
}

// As many members as fit on a line of the legend.
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

void DrawLegend(const MeshReport& report, double x, double top,
                pipeline::SvgWriter& svg) {
  const Listing& listing = report.listings.front();
  const int64_t rows = std::min(listing.groups.count(), kMaxLegendRows);
  for (int64_t group = 0; group < rows; ++group) {
    const std::vector<Rank> members = *listing.groups.Members(group);
    const double y = top + kLineHeight * static_cast<double>(group);
    DrawSquare(svg, x, y, 12, ColourOf(group), "");
    svg.Text(
        {.x = x + 20, .y = y + 11, .classes = "note"},
        absl::StrCat(*GroupName(report.mesh, listing.axes, members.front()),
                     ": ", Members(members)));
  }
  if (rows < listing.groups.count()) {
    svg.Text({.x = x + 20,
              .y = top + kLineHeight * static_cast<double>(rows) + 11,
              .classes = "note"},
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
  const std::string title = absl::StrCat(
      FormatAxes(report.mesh.axes()), " coloured by ", listing.axes, " group");
  pipeline::SvgWriter svg(legend_x + kLegendWidth + kMargin, height, title);
  svg.Text({.x = kMargin, .y = kMargin + 12, .classes = "title"}, title);
  svg.Text({.x = kMargin, .y = kMargin + 12 + kLineHeight, .classes = "note"},
           Caption(report, layout));
  DrawCells(report, layout, top, svg);
  DrawLegend(report, legend_x, top, svg);
  return std::move(svg).Finish();
}

}  // namespace tessera::tools
