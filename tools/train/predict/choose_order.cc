#include "tools/train/predict/choose_order.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/operation/operation.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/run_options_from.h"
#include "topology/mesh.h"
#include "topology/placement/placement.h"

namespace tessera::train {

namespace {

using collectives::RankLocation;
using topology::AxisTraffic;
using topology::Device;
using topology::HostGroup;
using topology::MeshAxis;

// The axis along which messages are counted. Returns nullopt for the groups of
// the gradient norm, whose messages have only a few bytes.
std::optional<MeshAxis> MeshAxisOf(TrafficAxis axis, const MeshSizes& mesh) {
  switch (axis) {
    case TrafficAxis::kTp:
      return MeshAxis::kTp;
    case TrafficAxis::kCp:
      return MeshAxis::kCp;
    case TrafficAxis::kPp:
      return MeshAxis::kPp;
    case TrafficAxis::kDp:
    case TrafficAxis::kReplicate:
    case TrafficAxis::kData:
    case TrafficAxis::kEp:
    case TrafficAxis::kEdp:
      return mesh.dp > 1 ? MeshAxis::kDp : MeshAxis::kCp;
    case TrafficAxis::kModel:
    case TrafficAxis::kExpertModel:
      break;
  }
  return std::nullopt;
}

// The messages of the pipeline rank that sends most bytes.
absl::StatusOr<RankTraffic> MostTraffic(const Settings& settings,
                                        const model_files::ModelConfig& model) {
  TESSERA_ASSIGN_OR_RETURN(const RunOptions options,
                           RunOptionsFrom(settings, model));
  TESSERA_ASSIGN_OR_RETURN(const PipelinePlan plan,
                           PipelinePlan::Create(options));
  std::vector<RankPlace> places;
  for (int64_t pp = 0; pp < options.mesh.pp; ++pp) places.push_back({.pp = pp});
  TESSERA_ASSIGN_OR_RETURN(const std::vector<RankPrediction> ranks,
                           PredictRanks(plan, places, HomesOf(settings)));
  return std::max_element(ranks.begin(), ranks.end(),
                          [](const auto& a, const auto& b) {
                            return a.traffic.Sent() < b.traffic.Sent();
                          })
      ->traffic;
}

bool AllEqual(std::span<const RankLocation> locations) {
  return std::all_of(
      locations.begin(), locations.end(),
      [&](const RankLocation& one) { return one == locations.front(); });
}

}  // namespace

std::vector<RankLocation> LocationsOf(
    const topology::LauncherEnvironment& environment) {
  std::vector<RankLocation> locations;
  const int64_t per_host = environment.local_world_size.value_or(0);
  if (per_host < 1) return locations;
  for (int64_t r = 0; r < environment.world_size.value(); ++r) {
    locations.push_back({absl::StrCat("host", r / per_host), std::nullopt});
  }
  return locations;
}

absl::StatusOr<topology::Cluster> ClusterOf(
    std::span<const RankLocation> locations) {
  std::vector<HostGroup> hosts;
  std::map<std::string, size_t> index_of;
  std::set<std::string> of_unknown_socket;
  for (const RankLocation& at : locations) {
    if (!at.socket) of_unknown_socket.insert(at.host);
  }
  for (size_t r = 0; r < locations.size(); ++r) {
    const RankLocation& at = locations[r];
    const bool is_new = index_of.try_emplace(at.host, hosts.size()).second;
    if (is_new) {
      HostGroup& host = hosts.emplace_back();
      host.name = absl::StrCat("host", hosts.size() - 1);
      host.links = topology::CpuLinks();
    } else if (at.host != locations[r - 1].host) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", r, " is on the host of a lower rank, and rank ", r - 1,
          " is not: an order can be chosen only if ranks of a host are "
          "consecutive; start them so, such as with mpirun --map-by slot, or "
          "give the order, such as --order=",
          FormatAxisOrder(topology::kDefaultAxisOrder)));
    }
    Device slot;
    slot.kind = topology::DeviceKind::kCpu;
    if (!of_unknown_socket.contains(at.host)) slot.socket = *at.socket;
    slot.numa_node = slot.socket;
    hosts.back().devices.push_back(slot);
  }
  return topology::Cluster::Create(std::move(hosts));
}

std::vector<AxisTraffic> TrafficOfAxes(const RankTraffic& traffic,
                                       const MeshSizes& mesh) {
  std::vector<AxisTraffic> axes;
  for (const MeshAxis axis : topology::kDefaultAxisOrder) {
    AxisTraffic& along = axes.emplace_back();
    along.axis = {std::string(MeshAxisName(axis)),
                  topology::AxisSize(mesh.SizeOf(axis))};
    for (const auto& [key, messages] : traffic.all()) {
      const auto kind = CollectiveKindOf(key.second);
      if (!kind || messages.count == 0) continue;
      if (MeshAxisOf(key.first, mesh) != axis) continue;
      const auto times = static_cast<double>(messages.count);
      along.transfers.push_back(
          {*kind, static_cast<double>(messages.bytes) / times, times});
    }
  }
  return axes;
}

absl::StatusOr<std::string> ChooseOrder(
    const Settings& settings, const model_files::ModelConfig& model,
    std::span<const RankLocation> locations) {
  if (settings.order != kAutoOrder) return settings.order;
  if (locations.empty() || AllEqual(locations)) {
    return FormatAxisOrder(topology::kDefaultAxisOrder);
  }
  TESSERA_ASSIGN_OR_RETURN(const topology::Cluster cluster,
                           ClusterOf(locations), Annotate(_, "--order=auto"));
  TESSERA_ASSIGN_OR_RETURN(const RankTraffic traffic,
                           MostTraffic(settings, model));
  TESSERA_ASSIGN_OR_RETURN(
      const topology::Placement placement,
      topology::FindPlacement(TrafficOfAxes(traffic, settings.parallel.mesh),
                              cluster),
      Annotate(_, "--order=auto"));
  return absl::StrJoin(placement.order, "-",
                       [](std::string* text, const topology::Axis& axis) {
                         text->append(axis.name);
                       });
}

}  // namespace tessera::train
