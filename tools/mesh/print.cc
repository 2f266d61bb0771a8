#include "tools/mesh/print.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
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

}  // namespace tessera::tools
