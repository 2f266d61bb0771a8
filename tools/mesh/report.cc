#include "tools/mesh/report.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "topology/expert.h"
#include "topology/group_name.h"
#include "topology/preset.h"

namespace tessera::tools {
namespace {

using topology::Axis;
using topology::AxisSize;
using topology::Mesh;
using topology::Preset;
using topology::Rank;

// The order to use: --order, or the preset's with the mesh's own axes after it.
absl::StatusOr<std::string> ChooseOrder(const MeshOptions& options,
                                        const std::vector<Axis>& axes) {
  if (!options.order.empty()) return options.order;
  Preset preset = topology::Presets().front();
  if (!options.preset.empty()) {
    TESSERA_ASSIGN_OR_RETURN(preset, topology::FindPreset(options.preset),
                             FlagError("preset", options.preset, _));
  }
  std::string order(preset.order);
  const std::vector<std::string> names = absl::StrSplit(preset.order, '-');
  for (const Axis& axis : axes) {
    if (absl::c_find(names, axis.name) == names.end()) {
      absl::StrAppend(&order, "-", axis.name);
    }
  }
  return order;
}

absl::Status CheckWorldSize(const MeshOptions& options, const Mesh& mesh) {
  if (!options.world_size.has_value() ||
      *options.world_size == mesh.world_size()) {
    return absl::OkStatus();
  }
  return FlagError(
      "world_size", absl::StrCat(*options.world_size),
      absl::InvalidArgumentError(absl::StrCat(
          "--mesh=", options.mesh, " multiplies to ", mesh.world_size(),
          "; give sizes that multiply to ", *options.world_size,
          " or --world_size=", mesh.world_size())));
}

absl::StatusOr<Mesh> Split(Mesh mesh, std::string_view splits) {
  for (std::string_view split :
       absl::StrSplit(splits, ';', absl::SkipEmpty())) {
    const std::pair<std::string_view, std::string_view> sides =
        absl::StrSplit(split, absl::MaxSplits(':', 1));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Axis> parts,
                             topology::ParseAxes(sides.second));
    TESSERA_ASSIGN_OR_RETURN(mesh, mesh.Redivide(sides.first, parts));
  }
  return mesh;
}

absl::StatusOr<Mesh> MakeMesh(const MeshOptions& options, std::string* order) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Axis> axes,
                           topology::ParseAxes(options.mesh),
                           FlagError("mesh", options.mesh, _));
  TESSERA_ASSIGN_OR_RETURN(*order, ChooseOrder(options, axes));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Axis> ordered,
                           topology::OrderAxes(axes, *order),
                           FlagError("order", *order, _));
  TESSERA_ASSIGN_OR_RETURN(
      Mesh mesh, Mesh::Create(ordered, Rank(options.first_rank)),
      FlagError("first_rank", absl::StrCat(options.first_rank), _));
  TESSERA_RETURN_IF_ERROR(CheckWorldSize(options, mesh));
  TESSERA_ASSIGN_OR_RETURN(mesh, Split(std::move(mesh), options.split),
                           FlagError("split", options.split, _));
  if (options.ep == 1 && options.etp == 1) return mesh;
  TESSERA_ASSIGN_OR_RETURN(
      mesh, WithExpertAxes(mesh, AxisSize(options.ep), AxisSize(options.etp)),
      FlagError("ep", absl::StrCat(options.ep), _));
  return mesh;
}

// "tp , pp" or "tp-pp" -> "tp,pp"; text that is no list stays as it is, for the
// message of whoever refuses it.
std::string Normalised(std::string_view names, std::string_view separator) {
  const auto parsed = topology::ParseAxisNames(names);
  return parsed.ok() ? absl::StrJoin(*parsed, separator) : std::string(names);
}

std::vector<std::string> AllAxes(const Mesh& mesh) {
  std::vector<std::string> names;
  for (size_t i = 0; i < mesh.division_count(); ++i) {
    for (const Axis& axis : mesh.division(i)) {
      if (absl::c_find(names, axis.name) == names.end()) {
        names.push_back(axis.name);
      }
    }
  }
  return names;
}

absl::Status CheckRank(const MeshReport& report) {
  const Mesh& mesh = report.mesh;
  if (report.rank.has_value()) {
    return FlagError("rank", absl::StrCat(report.rank->value()),
                     mesh.CoordinatesOf(*report.rank).status());
  }
  if (mesh.world_size() <= kMaxListedRanks) return absl::OkStatus();
  return FlagError(
      "mesh", FormatAxes(mesh.axes()),
      absl::InvalidArgumentError(absl::StrCat(
          mesh.world_size(), " ranks are too many to list (at most ",
          kMaxListedRanks, "); show one of them with --rank=0")));
}

}  // namespace

absl::StatusOr<MeshReport> MakeReport(const MeshOptions& options) {
  std::string order;
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, MakeMesh(options, &order));
  std::vector<std::string> axes = AllAxes(mesh);
  MeshReport report = {
      std::move(mesh), Normalised(order, "-"), std::move(axes), {}, {}, {}, {}};
  if (options.rank.has_value()) report.rank = Rank(*options.rank);
  TESSERA_RETURN_IF_ERROR(CheckRank(report));
  const std::vector<std::string> listed =
      options.axes.empty() ? report.axes
                           : std::vector{Normalised(options.axes, ",")};
  for (const std::string& names : listed) {
    TESSERA_ASSIGN_OR_RETURN(topology::Groups groups,
                             report.mesh.GroupsAlong(names),
                             FlagError("axes", options.axes, _));
    report.listings.push_back({names, std::move(groups)});
  }
  if (!options.grid.empty()) {
    const std::vector<std::string_view> sets =
        absl::StrSplit(options.grid, '/');
    TESSERA_ASSIGN_OR_RETURN(
        report.grid,
        topology::DeviceMesh::FromMesh(
            report.mesh, sets, report.rank.value_or(report.mesh.first_rank())),
        FlagError("grid", options.grid, _));
  }
  if (!options.cluster.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        report.placement,
        MakePlacementReport(report.mesh, options.cluster, options.model));
  }
  return report;
}

void ForEachRank(const MeshReport& report,
                 absl::FunctionRef<void(Rank)> visit) {
  if (report.rank.has_value()) return visit(*report.rank);
  for (int64_t i = 0; i < report.mesh.world_size(); ++i) {
    visit(report.mesh.first_rank() + i);
  }
}

void ForEachGroup(
    const MeshReport& report, const Listing& listing,
    absl::FunctionRef<void(const std::string& name, const std::vector<Rank>&)>
        visit) {
  const auto show = [&](int64_t group) {
    const std::vector<Rank> members = *listing.groups.Members(group);
    visit(*GroupName(report.mesh, listing.axes, members.front()), members);
  };
  if (report.rank.has_value())
    return show(*listing.groups.GroupOf(*report.rank));
  for (int64_t group = 0; group < listing.groups.count(); ++group) show(group);
}

}  // namespace tessera::tools
