#include "topology/cluster/cluster.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::topology {

namespace {

constexpr std::array<std::string_view, kLinkLevels> kLevelNames = {
    "device", "nvlink", "numa_node", "socket", "host", "network"};

constexpr std::array<std::string_view, kLinkKinds> kKindNames = {
    "memory",     "nvlink",  "pcie", "shared_memory", "socket_interconnect",
    "infiniband", "ethernet"};

template <typename Enum, size_t n>
std::optional<Enum> Find(const std::array<std::string_view, n>& names,
                         std::string_view name) {
  for (size_t i = 0; i < n; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

class Problems {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    lines_.push_back(absl::StrCat(parts...));
  }

  // An integer field that must lie in [low, high].
  void Range(std::string_view place, std::string_view field, int64_t value,
             int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    Add(place, ".", field, " is ", value, "; use ", low, " to ", high);
  }

  std::vector<std::string> Take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

std::string Shown(std::string_view text) {
  return absl::StrCat("\"", text.substr(0, 40), text.size() > 40 ? "..." : "",
                      "\"");
}

bool IsHostNameChar(char c) {
  return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
}

void CheckName(std::string_view place, const HostGroup& group,
               Problems& problems) {
  const std::string& name = group.name;
  const bool fits = !name.empty() && name.size() <= kMaxHostNameLength;
  if (fits && std::all_of(name.begin(), name.end(), IsHostNameChar)) return;
  const std::string shown =
      std::all_of(name.begin(), name.end(), IsHostNameChar) ? Shown(name)
                                                            : "not a host name";
  problems.Add(place, ".name is ", shown, " (", name.size(),
               " characters); use 1 to ", kMaxHostNameLength,
               " letters, digits, '.', '-' and '_'");
}

void CheckText(const std::string& place, std::string_view field,
               std::string_view text, Problems& problems) {
  const bool printable = std::all_of(text.begin(), text.end(),
                                     [](char c) { return c >= 32 && c < 127; });
  if (printable && text.size() <= kMaxDeviceTextLength) return;
  problems.Add(place, ".", field, " has ", text.size(), " characters",
               printable ? "" : ", some not printable ASCII", "; use at most ",
               kMaxDeviceTextLength, " printable ASCII characters");
}

void CheckDevice(const std::string& place, const Device& device,
                 Problems& problems) {
  CheckText(place, "model", device.model, problems);
  CheckText(place, "bus_id", device.bus_id, problems);
  if (device.memory_bytes < 0) {
    problems.Add(place, ".memory_bytes is ", device.memory_bytes,
                 "; use the device's memory in bytes, or 0 where unknown");
  }
  problems.Range(place, "socket", device.socket, 0, kMaxDomain);
  problems.Range(place, "numa_node", device.numa_node, 0, kMaxDomain);
  problems.Range(place, "nvlink_domain", device.nvlink_domain,
                 Device::kNoNvlink, kMaxDomain);
}

void CheckLinks(std::string_view place, const LinkTable& links,
                Problems& problems) {
  for (LinkLevel level : kAllLinkLevels) {
    const LinkSpeed& link = LinkAt(links, level);
    const std::string at = absl::StrCat(place, ".links.", LinkLevelName(level));
    if (!std::isfinite(link.latency) || link.latency < 0) {
      problems.Add(at, ".latency is ", link.latency,
                   " s; use a finite number of seconds, at least 0");
    }
    if (!std::isfinite(link.bandwidth) || link.bandwidth <= 0) {
      problems.Add(at, ".bandwidth is ", link.bandwidth,
                   " B/s; use a finite number above 0");
    }
  }
}

void CheckGroup(const std::string& place, const HostGroup& group,
                Problems& problems) {
  CheckName(place, group, problems);
  problems.Range(place, "count", group.count, 1, kMaxHosts);
  problems.Range(place, "nics", group.nics, 1, kMaxNics);
  if (group.nvlink_hosts < 1 || group.nvlink_hosts > kMaxHosts ||
      group.count % group.nvlink_hosts != 0) {
    problems.Add(place, ".nvlink_hosts is ", group.nvlink_hosts,
                 "; use a divisor of the ", group.count,
                 " hosts of the group, or 1");
  }
  CheckLinks(place, group.links, problems);
  const auto devices = static_cast<int64_t>(group.devices.size());
  if (devices == 0) {
    problems.Add(place,
                 ".devices is empty; give the host at least one GPU or "
                 "CPU slot, or leave the host out");
  } else if (devices > kMaxDevicesPerHost) {
    problems.Add(place, ".devices has ", devices, " devices; use at most ",
                 kMaxDevicesPerHost);
    return;
  }
  for (size_t i = 0; i < group.devices.size(); ++i) {
    CheckDevice(absl::StrCat(place, ".devices[", i, "]"), group.devices[i],
                problems);
  }
}

// Finds hosts of equal name. A group of several makes the names NAME0, NAME1,
// ...; so a name NAME17 clashes with it if it has more than 17 hosts.
class NameClashes {
 public:
  explicit NameClashes(const std::vector<HostGroup>& groups) {
    for (size_t i = 0; i < groups.size(); ++i) {
      auto& owners = groups[i].count > 1 ? numbered_ : single_;
      owners.emplace(groups[i].name, i);
    }
  }

  void Check(const std::vector<HostGroup>& groups, Problems& problems) const {
    for (size_t i = 0; i < groups.size(); ++i) {
      const HostGroup& group = groups[i];
      const auto& owners = group.count > 1 ? numbered_ : single_;
      if (size_t first = owners.at(group.name); first != i) {
        Report(groups, i, first, problems);
      }
      CheckNumbers(groups, i, problems);
    }
  }

 private:
  // Splits the digits off the end of the name in every way, and looks for a
  // numbered group that makes this name.
  void CheckNumbers(const std::vector<HostGroup>& groups, size_t i,
                    Problems& problems) const {
    // Checking the first name of a numbered group suffices, because its other
    // names have higher numbers.
    const std::string name =
        groups[i].count > 1 ? groups[i].name + "0" : groups[i].name;
    for (size_t cut = name.size(); cut-- > 1;) {
      if (!absl::ascii_isdigit(name[cut])) return;
      const std::string_view digits = std::string_view(name).substr(cut);
      const auto owner = numbered_.find(name.substr(0, cut));
      int64_t number = 0;
      if (owner == numbered_.end() || owner->second == i) continue;
      if (digits.size() > 1 && digits[0] == '0') continue;
      if (!absl::SimpleAtoi(digits, &number)) continue;
      if (number >= groups[owner->second].count) continue;
      if (name.substr(0, cut) == groups[i].name) continue;  // Already reported.
      Report(groups, i, owner->second, problems);
    }
  }

  static void Report(const std::vector<HostGroup>& groups, size_t i,
                     size_t other, Problems& problems) {
    problems.Add("hosts[", i, "].name ", Shown(groups[i].name),
                 groups[i].count > 1 ? " (numbered)" : "",
                 " names a host that is already named by hosts[", other, "] ",
                 Shown(groups[other].name),
                 groups[other].count > 1 ? " (numbered)" : "",
                 "; give every host a unique name");
  }

  absl::flat_hash_map<std::string, size_t> numbered_;
  absl::flat_hash_map<std::string, size_t> single_;
};

void CheckTotals(const std::vector<HostGroup>& groups, Problems& problems) {
  int64_t hosts = 0;
  int64_t devices = 0;
  for (const HostGroup& group : groups) {
    const auto each = static_cast<int64_t>(group.devices.size());
    if (group.count < 1 || group.count > kMaxHosts) return;
    if (each > kMaxDevicesPerHost) return;
    hosts += group.count;
    devices += group.count * each;
  }
  if (hosts > kMaxHosts) {
    problems.Add("the cluster has ", hosts, " hosts; use at most ", kMaxHosts);
  }
  if (devices > kMaxClusterDevices) {
    problems.Add("the cluster has ", devices, " devices; use at most ",
                 kMaxClusterDevices);
  }
}

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
  // If different cards have equal bandwidths, the smaller kind is used, so that
  // both directions agree.
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

std::string_view LinkLevelName(LinkLevel level) {
  return kLevelNames[static_cast<size_t>(level)];
}

std::string_view LinkKindName(LinkKind kind) {
  return kKindNames[static_cast<size_t>(kind)];
}

std::optional<LinkKind> ParseLinkKind(std::string_view name) {
  return Find<LinkKind>(kKindNames, name);
}

std::string LinkKindNames() { return absl::StrJoin(kKindNames, ", "); }

LinkTable GpuLinks() {
  constexpr double kPcie5x16 = 32e9 * 16 * 128 / 130 / 8;
  return {{
      {LinkKind::kMemory, 0, 3.35e12},
      {LinkKind::kNvlink, 3.4e-6, 450e9},
      {LinkKind::kPcie, 5.7e-6, kPcie5x16},
      {LinkKind::kPcie, 5.7e-6, kPcie5x16},
      {LinkKind::kSocketInterconnect, 11.4e-6, 22e9},
      {LinkKind::kInfiniband, 14e-6, 50e9},
  }};
}

LinkTable CpuLinks() {
  return {{
      {LinkKind::kMemory, 0, 20e9},
      {LinkKind::kNvlink, 3.4e-6, 450e9},
      {LinkKind::kSharedMemory, 1e-6, 10e9},
      {LinkKind::kSharedMemory, 1.5e-6, 8e9},
      {LinkKind::kSocketInterconnect, 2e-6, 5e9},
      {LinkKind::kEthernet, 20e-6, 12.5e9},
  }};
}

std::string_view DeviceKindName(DeviceKind kind) {
  return kind == DeviceKind::kGpu ? "gpu" : "cpu";
}

std::vector<std::string> HostProblems(const std::vector<HostGroup>& groups) {
  Problems problems;
  if (groups.empty()) {
    problems.Add("the cluster has no host; give at least one");
  }
  if (static_cast<int64_t>(groups.size()) > kMaxHosts) {
    problems.Add("the cluster has ", groups.size(),
                 " host groups; use at most ", kMaxHosts);
    return problems.Take();
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    CheckGroup(absl::StrCat("hosts[", i, "]"), groups[i], problems);
  }
  NameClashes(groups).Check(groups, problems);
  CheckTotals(groups, problems);
  return problems.Take();
}

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
