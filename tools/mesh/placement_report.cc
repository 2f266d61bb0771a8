#include "tools/mesh/placement_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/cli/cli.h"
#include "topology/cluster/cluster_file.h"
#include "topology/cluster/cluster_spec.h"
#include "topology/cluster/link.h"
#include "topology/discovery/cluster_discovery.h"

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

// Sets the field that `item` names; false where it is no key with a number.
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
                                    std::vector<std::string>* notes) {
  if (absl::EndsWith(text, ".json")) return topology::LoadCluster(text);
  if (text != "here") return topology::ParseCluster(text);
  TESSERA_ASSIGN_OR_RETURN(topology::DiscoveredCluster found,
                           topology::DiscoverCluster({}));
  absl::c_move(found.notes, std::back_inserter(*notes));
  return std::move(found.cluster);
}

absl::StatusOr<TransformerShape> ReadModel(std::string_view text) {
  TransformerShape shape = kLlama2With7B;
  for (std::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (SetField(item, &shape)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", item.substr(0, 60),
                     "\" is no key with a number; expected items such as "
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
      Cluster machines, ReadCluster(cluster, &notes),
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
  // Host names from a file may be any bytes.
  out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tessera::tools
