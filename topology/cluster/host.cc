#include "topology/cluster/host.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::topology {
namespace {

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
// ...; so a name NAME17 clashes with it where it has more than 17 hosts.
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
    // The first name of a numbered group decides: the rest lie above it.
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
      if (name.substr(0, cut) == groups[i].name) continue;  // Said already.
      Report(groups, i, owner->second, problems);
    }
  }

  static void Report(const std::vector<HostGroup>& groups, size_t i,
                     size_t other, Problems& problems) {
    problems.Add("hosts[", i, "].name ", Shown(groups[i].name),
                 groups[i].count > 1 ? " (numbered)" : "",
                 " names a host that hosts[", other, "] ",
                 Shown(groups[other].name),
                 groups[other].count > 1 ? " (numbered)" : "",
                 " names too; give every host a name of its own");
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

}  // namespace

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

}  // namespace tessera::topology
