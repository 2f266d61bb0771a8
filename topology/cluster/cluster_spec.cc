#include "topology/cluster/cluster_spec.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "topology/cluster/units.h"

namespace tessera::topology {
namespace {

constexpr size_t kMaxSpecLength = 4096;
constexpr std::string_view kExample = "hosts=16,gpus=8";

constexpr std::array<std::string_view, 19> kKeys = {
    "hosts",          "gpus",         "cpus",           "sockets",
    "numa",           "memory",       "nvlink",         "numa_node",
    "socket",         "host",         "network",        "nics",
    "nvlink_hosts",   "name",         "nvlink_latency", "numa_node_latency",
    "socket_latency", "host_latency", "network_latency"};

std::string Shown(std::string_view text) {
  return absl::StrCat("\"", text.substr(0, 60), text.size() > 60 ? "..." : "",
                      "\"");
}

absl::Status Invalid(std::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("cluster spec: ", problem, "; for example ", kExample));
}

class Items {
 public:
  absl::Status Add(std::string_view item) {
    const std::pair<std::string_view, std::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const std::string_view key = absl::StripAsciiWhitespace(parts.first);
    const std::string_view value = absl::StripAsciiWhitespace(parts.second);
    if (key.empty() || value.empty()) {
      return Invalid(absl::StrCat("item ", Shown(item), " is not key=value"));
    }
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      return Invalid(absl::StrCat("unknown key ", Shown(key), "; the keys are ",
                                  absl::StrJoin(kKeys, ", ")));
    }
    if (!values_.emplace(key, value).second) {
      return Invalid(absl::StrCat("key ", Shown(key), " is given twice"));
    }
    return absl::OkStatus();
  }

  std::optional<std::string_view> Find(std::string_view key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

  // A whole number from 1 to `high`, or `fallback` where the key is not given.
  absl::StatusOr<int64_t> Count(std::string_view key, int64_t fallback,
                                int64_t high) const {
    const std::optional<std::string_view> text = Find(key);
    if (!text) return fallback;
    int64_t count = 0;
    if (absl::SimpleAtoi(*text, &count) && count >= 1 && count <= high) {
      return count;
    }
    return Invalid(absl::StrCat(key, "=", Shown(*text),
                                " is not a whole number from 1 to ", high));
  }

 private:
  absl::flat_hash_map<std::string_view, std::string_view> values_;
};

absl::StatusOr<Items> SplitItems(std::string_view spec) {
  if (spec.size() > kMaxSpecLength) {
    return Invalid(absl::StrCat("the text has ", spec.size(),
                                " characters; use at most ", kMaxSpecLength));
  }
  if (absl::StripAsciiWhitespace(spec).empty()) {
    return Invalid("the text is empty");
  }
  Items items;
  for (std::string_view item : absl::StrSplit(spec, ',')) {
    TESSERA_RETURN_IF_ERROR(items.Add(item));
  }
  return items;
}

// Sets the speed of one level from the keys NAME and NAME_latency.
absl::Status ReadLink(const Items& items, LinkLevel level, LinkTable& links) {
  LinkSpeed& link = LinkAt(links, level);
  const std::string key(LinkLevelName(level));
  const std::optional<std::string_view> bandwidth = items.Find(key);
  if (bandwidth && !(level == LinkLevel::kNvlink && *bandwidth == "none")) {
    TESSERA_ASSIGN_OR_RETURN(link.bandwidth, ParseBandwidth(*bandwidth),
                             Invalid(absl::StrCat(key, ": ", _.message())));
  }
  const std::string latency_key = key + "_latency";
  if (const auto latency = items.Find(latency_key)) {
    TESSERA_ASSIGN_OR_RETURN(
        link.latency, ParseLatency(*latency),
        Invalid(absl::StrCat(latency_key, ": ", _.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReadMemory(const Items& items) {
  const std::optional<std::string_view> text = items.Find("memory");
  if (!text) return 0;
  TESSERA_ASSIGN_OR_RETURN(const ByteSize size, ParseByteSize(*text),
                           Invalid(absl::StrCat("memory: ", _.message())));
  return size.bytes();
}

absl::StatusOr<DeviceKind> ReadKind(const Items& items) {
  const bool gpus = items.Find("gpus").has_value();
  const bool cpus = items.Find("cpus").has_value();
  if (gpus == cpus) {
    return Invalid(gpus ? "both gpus and cpus are given; give the one that "
                          "holds the ranks"
                        : "neither gpus nor cpus is given; say how many "
                          "devices a host has");
  }
  return gpus ? DeviceKind::kGpu : DeviceKind::kCpu;
}

// How many of `count` things the part `index` of `parts` gets.
int64_t Share(int64_t count, int64_t parts, int64_t index) {
  return count / parts + (index < count % parts ? 1 : 0);
}

// Devices in order over the sockets and their NUMA nodes, as evenly as they go.
absl::Status ReadDevices(const Items& items, DeviceKind kind,
                         HostGroup& group) {
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t count,
      items.Count(kind == DeviceKind::kGpu ? "gpus" : "cpus", 1,
                  kMaxDevicesPerHost));
  TESSERA_ASSIGN_OR_RETURN(const int64_t sockets,
                           items.Count("sockets", 1, kMaxDevicesPerHost));
  TESSERA_ASSIGN_OR_RETURN(const int64_t numa,
                           items.Count("numa", 1, kMaxDevicesPerHost));
  TESSERA_ASSIGN_OR_RETURN(const int64_t memory, ReadMemory(items));
  const std::string_view nvlink = items.Find("nvlink").value_or(
      kind == DeviceKind::kGpu ? "default" : "none");
  Device device;
  device.kind = kind;
  device.memory_bytes = memory;
  device.nvlink_domain = nvlink == "none" ? Device::kNoNvlink : 0;
  for (device.socket = 0; device.socket < sockets; ++device.socket) {
    const int64_t here = Share(count, sockets, device.socket);
    for (int64_t node = 0; node < std::min(numa, here); ++node) {
      device.numa_node = device.socket * numa + node;
      group.devices.insert(group.devices.end(),
                           static_cast<size_t>(Share(here, numa, node)),
                           device);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Cluster> ParseCluster(std::string_view spec) {
  TESSERA_ASSIGN_OR_RETURN(const Items items, SplitItems(spec));
  TESSERA_ASSIGN_OR_RETURN(const DeviceKind kind, ReadKind(items));
  HostGroup group;
  TESSERA_RETURN_IF_ERROR(ReadDevices(items, kind, group));
  const bool is_gpu = kind == DeviceKind::kGpu;
  group.links = is_gpu ? GpuLinks() : CpuLinks();
  for (LinkLevel level : kAllLinkLevels) {
    if (level == LinkLevel::kDevice) continue;
    TESSERA_RETURN_IF_ERROR(ReadLink(items, level, group.links));
  }
  TESSERA_ASSIGN_OR_RETURN(group.count, items.Count("hosts", 1, kMaxHosts));
  TESSERA_ASSIGN_OR_RETURN(group.nvlink_hosts,
                           items.Count("nvlink_hosts", 1, kMaxHosts));
  const auto devices = static_cast<int64_t>(group.devices.size());
  const int64_t nics = is_gpu ? std::min(devices, kMaxNics) : 1;
  TESSERA_ASSIGN_OR_RETURN(group.nics, items.Count("nics", nics, kMaxNics));
  group.name = std::string(items.Find("name").value_or("host"));
  if (group.count == 1 && !items.Find("name")) group.name = "host0";
  std::vector<HostGroup> groups;
  groups.push_back(std::move(group));
  return Cluster::Create(std::move(groups));
}

}  // namespace tessera::topology
