#include "topology/cluster/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera::topology {
namespace {

constexpr size_t kShownProblems = 20;
constexpr size_t kShownGroups = 8;

// Index of the last entry of `firsts` that is not above `value`.
size_t IndexBelow(const std::vector<int64_t>& firsts, int64_t value) {
  const auto above = std::upper_bound(firsts.begin(), firsts.end(), value);
  return static_cast<size_t>(above - firsts.begin()) - 1;
}

LinkSpeed NetworkBetween(const HostGroup& a, const HostGroup& b) {
  const LinkSpeed& x = LinkAt(a.links, LinkLevel::kNetwork);
  const LinkSpeed& y = LinkAt(b.links, LinkLevel::kNetwork);
  // Equal bandwidths of unlike cards: the smaller kind, so that both
  // directions agree.
  const bool x_rules =
      x.bandwidth != y.bandwidth ? x.bandwidth < y.bandwidth : x.kind <= y.kind;
  LinkSpeed link = x_rules ? x : y;
  link.latency = std::max(x.latency, y.latency);
  return link;
}

LinkLevel LevelWithinHost(const Device& a, const Device& b) {
  if (a.nvlink_domain != Device::kNoNvlink &&
      a.nvlink_domain == b.nvlink_domain) {
    return LinkLevel::kNvlink;
  }
  if (a.socket != b.socket) return LinkLevel::kHost;
  if (a.numa_node != b.numa_node) return LinkLevel::kSocket;
  return LinkLevel::kNumaNode;
}

bool ShareNvlinkAcrossHosts(const HostGroup& group, const DevicePlace& a,
                            const DevicePlace& b) {
  if (a.group != b.group || group.nvlink_hosts == 1) return false;
  if (a.member / group.nvlink_hosts != b.member / group.nvlink_hosts) {
    return false;
  }
  const Device& x = group.devices[static_cast<size_t>(a.local)];
  const Device& y = group.devices[static_cast<size_t>(b.local)];
  return x.nvlink_domain != Device::kNoNvlink &&
         x.nvlink_domain == y.nvlink_domain;
}

std::string NumberedName(const HostGroup& group, int64_t member) {
  return group.count == 1 ? group.name : absl::StrCat(group.name, member);
}

std::string DescribeGroup(const HostGroup& group) {
  const Device& first = group.devices.front();
  return absl::StrCat(group.count, " x ", group.devices.size(), " ",
                      DeviceKindName(first.kind),
                      first.model.empty() ? "" : " (", first.model,
                      first.model.empty() ? "" : ")");
}

}  // namespace

absl::StatusOr<Cluster> Cluster::Create(std::vector<HostGroup> groups) {
  std::vector<std::string> problems = HostProblems(groups);
  if (!problems.empty()) {
    const size_t all = problems.size();
    problems.resize(std::min(all, kShownProblems));
    return absl::InvalidArgumentError(absl::StrCat(
        "the cluster has ", all, all == 1 ? " problem: " : " problems: ",
        absl::StrJoin(problems, "; "), all > kShownProblems ? "; ..." : ""));
  }
  auto state = std::make_shared<State>();
  int64_t hosts = 0;
  int64_t devices = 0;
  for (const HostGroup& group : groups) {
    state->first_host.push_back(hosts);
    state->first_device.push_back(devices);
    hosts += group.count;
    devices += group.count * static_cast<int64_t>(group.devices.size());
  }
  state->first_host.push_back(hosts);
  state->first_device.push_back(devices);
  state->groups = std::move(groups);
  return Cluster(std::move(state));
}

absl::Status Cluster::CheckHost(HostIndex host) const {
  if (Contains(host)) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("host ", host.value(), " is not in the cluster; its ",
                   num_hosts(), " hosts are numbered from 0"));
}

size_t Cluster::GroupOf(HostIndex host) const {
  return IndexBelow(state_->first_host, host.value());
}

absl::StatusOr<DevicePlace> Cluster::Locate(DeviceIndex device) const {
  if (!Contains(device)) {
    return absl::OutOfRangeError(
        absl::StrCat("device ", device.value(), " is not in the cluster; its ",
                     num_devices(), " devices are numbered from 0"));
  }
  const size_t group = IndexBelow(state_->first_device, device.value());
  const int64_t offset = device.value() - state_->first_device[group];
  const auto each = static_cast<int64_t>(state_->groups[group].devices.size());
  DevicePlace place;
  place.group = static_cast<int64_t>(group);
  place.member = offset / each;
  place.local = offset % each;
  place.host = HostIndex(state_->first_host[group] + place.member);
  return place;
}

absl::StatusOr<HostIndex> Cluster::HostOf(DeviceIndex device) const {
  TESSERA_ASSIGN_OR_RETURN(const DevicePlace place, Locate(device));
  return place.host;
}

absl::StatusOr<Device> Cluster::DeviceAt(DeviceIndex device) const {
  TESSERA_ASSIGN_OR_RETURN(const DevicePlace place, Locate(device));
  return GroupAt(place.group).devices[static_cast<size_t>(place.local)];
}

absl::StatusOr<DeviceIndex> Cluster::FirstDevice(HostIndex host) const {
  TESSERA_RETURN_IF_ERROR(CheckHost(host));
  const size_t group = GroupOf(host);
  const auto each = static_cast<int64_t>(state_->groups[group].devices.size());
  return DeviceIndex(state_->first_device[group] +
                     (host.value() - state_->first_host[group]) * each);
}

absl::StatusOr<int64_t> Cluster::DeviceCount(HostIndex host) const {
  TESSERA_RETURN_IF_ERROR(CheckHost(host));
  return static_cast<int64_t>(state_->groups[GroupOf(host)].devices.size());
}

absl::StatusOr<std::string> Cluster::HostName(HostIndex host) const {
  TESSERA_RETURN_IF_ERROR(CheckHost(host));
  const size_t group = GroupOf(host);
  return NumberedName(state_->groups[group],
                      host.value() - state_->first_host[group]);
}

absl::StatusOr<HostIndex> Cluster::FindHost(std::string_view name) const {
  for (size_t i = 0; i < state_->groups.size(); ++i) {
    const HostGroup& group = state_->groups[i];
    std::string_view digits = name;
    int64_t member = 0;
    if (!absl::ConsumePrefix(&digits, group.name)) continue;
    if (group.count > 1 && !absl::SimpleAtoi(digits, &member)) continue;
    if (member < 0 || member >= group.count) continue;
    if (NumberedName(group, member) != name) continue;
    return HostIndex(state_->first_host[i] + member);
  }
  return absl::OutOfRangeError(absl::StrCat(
      "host \"", name.substr(0, 80), "\" is not among the cluster's ",
      num_hosts(), " hosts; the first is \"",
      NumberedName(state_->groups.front(), 0), "\""));
}

absl::StatusOr<Link> Cluster::LinkBetween(DeviceIndex a, DeviceIndex b) const {
  TESSERA_ASSIGN_OR_RETURN(const DevicePlace x, Locate(a));
  TESSERA_ASSIGN_OR_RETURN(const DevicePlace y, Locate(b));
  return LinkBetween(x, y);
}

Link Cluster::LinkBetween(const DevicePlace& a, const DevicePlace& b) const {
  const HostGroup& group = GroupAt(a.group);
  if (a.host != b.host) {
    if (ShareNvlinkAcrossHosts(group, a, b)) {
      return {LinkLevel::kNvlink, LinkAt(group.links, LinkLevel::kNvlink)};
    }
    return {LinkLevel::kNetwork, NetworkBetween(group, GroupAt(b.group))};
  }
  const LinkLevel level =
      a.local == b.local
          ? LinkLevel::kDevice
          : LevelWithinHost(group.devices[static_cast<size_t>(a.local)],
                            group.devices[static_cast<size_t>(b.local)]);
  return {level, LinkAt(group.links, level)};
}

absl::StatusOr<double> Cluster::NetworkBandwidth(HostIndex host) const {
  TESSERA_RETURN_IF_ERROR(CheckHost(host));
  const HostGroup& group = state_->groups[GroupOf(host)];
  return LinkAt(group.links, LinkLevel::kNetwork).bandwidth *
         static_cast<double>(group.nics);
}

std::string Describe(const Cluster& cluster) {
  std::vector<std::string> parts;
  for (const HostGroup& group : cluster.groups()) {
    if (parts.size() == kShownGroups) {
      parts.push_back("...");
      break;
    }
    parts.push_back(DescribeGroup(group));
  }
  return absl::StrCat(cluster.num_hosts(),
                      cluster.num_hosts() == 1 ? " host, " : " hosts, ",
                      cluster.num_devices(),
                      cluster.num_devices() == 1 ? " device; " : " devices; ",
                      absl::StrJoin(parts, ", "));
}

}  // namespace tessera::topology
