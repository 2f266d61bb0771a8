#include "tools/mesh/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/cli/cli.h"
#include "topology/cluster/cluster.h"
#include "topology/cluster/cluster_file.h"
#include "topology/discovery/cluster_discovery.h"
#include "topology/mesh.h"

namespace tessera::tools {

namespace {

using topology::AxisPlacement;
using topology::Cluster;
using topology::Placement;
using topology::TransformerShape;

// Touvron et al., "Llama 2", arXiv 2307.09288, table 1 and the released
// configuration.
constexpr TransformerShape kLlama2With7B = {.layers = 32,
                                            .hidden = 4096,
                                            .kv_hidden = 4096,
                                            .sequence = 4096,
                                            .micro_batch = 1,
                                            .micro_batches = 8,
                                            .dense_parameters = 6.74e9};

struct IntegerKey {
  std::string_view name;
  int64_t TransformerShape::*field;
};
constexpr std::array<IntegerKey, 8> kIntegerKeys = {{
    {"layers", &TransformerShape::layers},
    {"hidden", &TransformerShape::hidden},
    {"kv_hidden", &TransformerShape::kv_hidden},
    {"sequence", &TransformerShape::sequence},
    {"micro_batch", &TransformerShape::micro_batch},
    {"micro_batches", &TransformerShape::micro_batches},
    {"experts_per_token", &TransformerShape::experts_per_token},
    {"zero", &TransformerShape::zero_stage},
}};

struct RealKey {
  std::string_view name;
  double TransformerShape::*field;
};
constexpr std::array<RealKey, 2> kRealKeys = {{
    {"parameters", &TransformerShape::dense_parameters},
    {"expert_parameters", &TransformerShape::expert_parameters},
}};

std::string KeyNames() {
  const auto append = [](std::string* out, const auto& key) {
    absl::StrAppend(out, key.name);
  };
  return absl::StrCat(absl::StrJoin(kIntegerKeys, ", ", append), ", ",
                      absl::StrJoin(kRealKeys, ", ", append));
}

// Sets the field that `item` names. Returns false if `item` is not a known key
// with a number.
bool SetField(std::string_view item, TransformerShape* shape) {
  const std::pair<std::string_view, std::string_view> sides =
      absl::StrSplit(item, absl::MaxSplits('=', 1));
  for (const IntegerKey& key : kIntegerKeys) {
    if (key.name == sides.first) {
      return absl::SimpleAtoi(sides.second, &(shape->*key.field));
    }
  }
  for (const RealKey& key : kRealKeys) {
    if (key.name == sides.first) {
      return absl::SimpleAtod(sides.second, &(shape->*key.field)) &&
             std::isfinite(shape->*key.field);
    }
  }
  return false;
}

std::string OrderOf(const Placement& placement) {
  return absl::StrJoin(placement.order, "-",
                       [](std::string* out, const topology::Axis& axis) {
                         absl::StrAppend(out, axis.name);
                       });
}

nlohmann::ordered_json ToJson(const Placement& placement) {
  nlohmann::ordered_json axes = nlohmann::ordered_json::array();
  for (const AxisPlacement& axis : placement.axes) {
    nlohmann::ordered_json levels = nlohmann::ordered_json::object();
    for (const topology::LinkLevel level : topology::kAllLinkLevels) {
      const int64_t groups = axis.groups_at_level[static_cast<size_t>(level)];
      if (groups > 0) levels[std::string(LinkLevelName(level))] = groups;
    }
    axes.push_back(
        {{"axis", axis.axis.name},
         {"size", axis.axis.size.value()},
         {"seconds_per_step", axis.seconds_per_step},
         {"worst_level", std::string(LinkLevelName(axis.worst_level))},
         {"groups_at_level", std::move(levels)},
         {"network_bytes", axis.network_bytes},
         {"busiest_host_bytes", axis.busiest_host_bytes}});
  }
  return {{"order", OrderOf(placement)},
          {"seconds_per_step", placement.seconds_per_step},
          {"busiest_host_bytes", placement.busiest_host_bytes},
          {"axes", std::move(axes)},
          {"warnings", placement.warnings}};
}

}  // namespace

absl::StatusOr<Cluster> ReadCluster(const std::string& text,
                                    std::vector<std::string>* notes,
                                    int64_t ranks) {
  if (absl::EndsWith(text, ".json")) return topology::LoadCluster(text);
  if (text != "here") return topology::ParseCluster(text);
  TESSERA_ASSIGN_OR_RETURN(topology::DiscoveredCluster found,
                           topology::DiscoverCluster({.ranks = ranks}));
  absl::c_move(found.notes, std::back_inserter(*notes));
  return std::move(found.cluster);
}

absl::StatusOr<TransformerShape> ReadModel(std::string_view text) {
  TransformerShape shape = kLlama2With7B;
  for (std::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (SetField(item, &shape)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", item.substr(0, 60),
                     "\" is not a key with a number; expected items such as "
                     "layers=32, with the keys ",
                     KeyNames()));
  }
  return shape;
}

absl::StatusOr<PlacementReport> MakePlacementReport(const topology::Mesh& mesh,
                                                    const std::string& cluster,
                                                    const std::string& model) {
  std::vector<std::string> notes;
  TESSERA_ASSIGN_OR_RETURN(
      Cluster machines, ReadCluster(cluster, &notes, mesh.world_size()),
      absl::IsNotFound(_) || absl::IsInvalidArgument(_)
          ? FlagError("cluster", cluster, _)
          : Annotate(_, absl::StrCat("--cluster=", cluster)));
  TESSERA_ASSIGN_OR_RETURN(const TransformerShape shape, ReadModel(model),
                           FlagError("model", model, _));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<topology::AxisTraffic> traffic,
      topology::EstimateTransformerTraffic(mesh.axes(), shape),
      FlagError("model", model, _));
  TESSERA_ASSIGN_OR_RETURN(Placement given,
                           topology::EvaluatePlacement(traffic, machines),
                           FlagError("cluster", cluster, _));
  TESSERA_ASSIGN_OR_RETURN(Placement best,
                           topology::FindPlacement(traffic, machines),
                           FlagError("cluster", cluster, _));
  return PlacementReport{std::move(machines), std::move(given), std::move(best),
                         std::move(notes)};
}

void PrintPlacementText(const PlacementReport& report, std::ostream& out) {
  out << "\non " << topology::Describe(report.cluster) << "\n"
      << topology::Describe(report.given);
  for (const std::string& note : report.notes) out << "note: " << note << "\n";
  const double saved =
      report.given.seconds_per_step - report.best.seconds_per_step;
  if (saved <= report.given.seconds_per_step * 1e-9) {
    out << "no order of the axes communicates faster\n";
    return;
  }
  out << "faster in the order --order=" << OrderOf(report.best) << ":\n"
      << topology::Describe(report.best);
}

void PrintPlacementJson(const PlacementReport& report, std::ostream& out) {
  const nlohmann::ordered_json json = {
      {"hosts", report.cluster.num_hosts()},
      {"devices", report.cluster.num_devices()},
      {"given", ToJson(report.given)},
      {"best", ToJson(report.best)},
      {"notes", report.notes}};
  // Host names from a file may contain any bytes.
  out << DumpJson(json);
}

namespace {

using topology::Axis;
using topology::AxisSize;
using topology::Mesh;
using topology::Preset;
using topology::Rank;

// The order to use: --order, or the preset's order followed by the mesh's other
// axes.
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
      absl::StrCat("--mesh=", options.mesh, " multiplies to ",
                   mesh.world_size(), "; give sizes that multiply to ",
                   *options.world_size,
                   " or --world_size=", mesh.world_size()));
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

// Converts "tp , pp" or "tp-pp" to "tp,pp". Leaves text that is not a list
// unchanged, for the error message of its parser.
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
      absl::StrCat(mesh.world_size(), " ranks are too many to list (at most ",
                   kMaxListedRanks, "); show one of them with --rank=0"));
}

}  // namespace

absl::StatusOr<MeshReport> MakeReport(const MeshOptions& options) {
  std::string order;
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, MakeMesh(options, &order));
  std::vector<std::string> axes = AllAxes(mesh);
  MeshReport report = {std::move(mesh),
                       Normalised(order, "-"),
                       std::move(axes),
                       {},
                       {},
                       {},
                       {},
                       {}};
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
  if (!options.tensor.empty()) {
    TESSERA_ASSIGN_OR_RETURN(report.tensor,
                             MakeTensorReport(report.mesh, options.tensor));
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
