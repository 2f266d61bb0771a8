#include "collectives/algorithms/cluster_hierarchy.h"

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

using topology::Cluster;
using topology::Device;
using topology::DeviceIndex;
using topology::DevicePlace;

// What ranks of one group have in common: a kind of place and its numbers.
using Place = std::tuple<int, int64_t, int64_t>;
enum : int { kHost, kSocket, kNumaNode, kNvlink, kNvlinkOfHosts };

// The places of a device, innermost first.
std::vector<Place> PlacesOf(const Cluster& cluster, const DevicePlace& where,
                            const Device& device) {
  const int64_t host = where.host.value();
  const Place own_host = {kHost, host, 0};
  if (device.nvlink_domain == Device::kNoNvlink) {
    return {{kNumaNode, host, device.numa_node},
            {kSocket, host, device.socket},
            own_host};
  }
  const topology::HostGroup& group =
      cluster.groups()[static_cast<size_t>(where.group)];
  if (group.nvlink_hosts == 1) {
    const Place domain = {kNvlink, host, device.nvlink_domain};
    return {domain, domain, own_host};
  }
  const int64_t first_host = host - where.member % group.nvlink_hosts;
  const Place domain = {kNvlinkOfHosts, first_host, device.nvlink_domain};
  return {domain, domain, domain};
}

bool AllDiffer(const std::vector<int64_t>& labels) {
  return std::set<int64_t>(labels.begin(), labels.end()).size() ==
         labels.size();
}

}  // namespace

absl::StatusOr<Hierarchy> HierarchyOf(const Cluster& cluster,
                                      std::span<const DeviceIndex> devices) {
  constexpr size_t kLevels = 3;
  std::vector<std::vector<int64_t>> labels(kLevels);
  std::map<Place, int64_t> numbers;
  for (DeviceIndex index : devices) {
    TESSERA_ASSIGN_OR_RETURN(const DevicePlace where, cluster.Locate(index));
    TESSERA_ASSIGN_OR_RETURN(const Device device, cluster.DeviceAt(index));
    const std::vector<Place> places = PlacesOf(cluster, where, device);
    for (size_t level = 0; level < kLevels; ++level) {
      const auto next = static_cast<int64_t>(numbers.size());
      labels[level].push_back(
          numbers.emplace(places[level], next).first->second);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Hierarchy all, Hierarchy::FromLabels(labels));
  // Levels that tell no more than the next one, or that part all ranks.
  std::vector<std::vector<int64_t>> telling;
  for (size_t level = 0; level < kLevels; ++level) {
    std::vector<int64_t> groups;
    bool same = level + 1 < kLevels;
    for (int64_t rank = 0; rank < all.ranks(); ++rank) {
      const auto number = static_cast<int64_t>(level);
      groups.push_back(all.GroupOf(number, topology::Rank(rank)));
      same = same &&
             groups.back() == all.GroupOf(number + 1, topology::Rank(rank));
    }
    if (level + 1 < kLevels && (same || AllDiffer(groups))) continue;
    telling.push_back(std::move(groups));
  }
  return Hierarchy::FromLabels(telling);
}

absl::StatusOr<Hierarchy> HierarchyOf(const Cluster& cluster, int64_t ranks) {
  if (ranks > cluster.num_devices()) {
    return absl::OutOfRangeError(
        absl::StrCat(ranks, " ranks on ", cluster.num_devices(),
                     " devices; give the device of each rank"));
  }
  std::vector<DeviceIndex> devices;
  for (int64_t rank = 0; rank < ranks; ++rank) devices.emplace_back(rank);
  return HierarchyOf(cluster, devices);
}

}  // namespace tessera::collectives
