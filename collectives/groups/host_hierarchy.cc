#include "collectives/groups/host_hierarchy.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/communicator.h"
#include "collectives/engine/operation_context.h"
#include "collectives/groups/agreement.h"

namespace tessera::collectives {

namespace {

// All ranks, with an id that no user's subgroup has (those are hashes of
// lists).
absl::StatusOr<std::unique_ptr<Communicator>> GroupBeside(
    Engine& engine, absl::Duration timeout) {
  constexpr uint32_t kHostsGroup = 3;
  std::vector<Rank> everyone;
  for (int64_t r = 0; r < engine.size(); ++r) everyone.push_back(Rank(r));
  const int64_t deadline = MonotonicNanos() + absl::ToInt64Nanoseconds(std::min(
                                                  timeout, absl::Hours(1)));
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> beside,
      engine.CreateSubgroup(everyone, kHostsGroup, deadline));
  CommunicatorOptions options;
  options.name = "hosts";
  options.timeout = timeout;
  return Communicator::Create(std::move(beside), std::move(options));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, std::string_view host, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                           GroupBeside(engine, timeout));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                           ExchangeTexts(*group, host, timeout));
  std::map<std::string, int64_t> numbers;
  std::vector<int64_t> labels;
  for (const std::string& name : hosts) {
    const auto next = static_cast<int64_t>(numbers.size());
    labels.push_back(numbers.try_emplace(name, next).first->second);
  }
  if (numbers.size() == 1 || numbers.size() == hosts.size()) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(Hierarchy hierarchy,
                           Hierarchy::FromLabels({{std::move(labels)}}));
  return std::make_shared<const Hierarchy>(std::move(hierarchy));
}

absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(const HostId host, HostId::Self());
  return HostHierarchy(engine, host.ToString(), timeout);
}

namespace {

using topology::Cluster;
using topology::Device;
using topology::DeviceIndex;
using topology::DevicePlace;

// A kind of location and its numbers; equal for the ranks of one group.
using Place = std::tuple<int, int64_t, int64_t>;
enum : int { kHost, kSocket, kNumaNode, kNvlink, kNvlinkOfHosts };

// The locations of a device, innermost first.
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
  // Drops levels that equal the next one or separate all ranks.
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
