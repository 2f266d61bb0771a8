#include "topology/cluster/cluster_file.h"

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
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::topology {

namespace {

constexpr double kMaxLatency = 1000;

// Parses to the nearest double, "3.4us" as 3.4e-6, by appending the exponent to
// the text, since multiplying would round twice.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4>
    kTimeUnits = {{{"ns", "e-9"}, {"us", "e-6"}, {"ms", "e-3"}, {"s", "e0"}}};

absl::Status Invalid(std::string_view what, std::string_view text,
                     std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " \"", text.substr(0, 40), "\" is not ", expected));
}

bool IsPlainDecimal(std::string_view text) {
  for (char c : text) {
    if (!absl::ascii_isdigit(c) && c != '.') return false;
  }
  return !text.empty();
}

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

  // A whole number from 1 to `high`, or `fallback` if the key is missing.
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
                        : "neither gpus nor cpus is given; give the number of "
                          "devices of a host");
  }
  return gpus ? DeviceKind::kGpu : DeviceKind::kCpu;
}

// The number of `count` items that part `index` of `parts` gets.
int64_t Share(int64_t count, int64_t parts, int64_t index) {
  return count / parts + (index < count % parts ? 1 : 0);
}

// Distributes devices in order over the sockets and their NUMA nodes, as evenly
// as possible.
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

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "tessera-cluster";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxMemory = int64_t{1} << 60;

DeviceKind ReadKind(JsonReader& reader, JsonProblems& problems) {
  const std::string kind = reader.TextOr("kind", "gpu");
  if (kind == "cpu") return DeviceKind::kCpu;
  if (kind != "gpu") {
    problems.Add(absl::StrCat(reader.PathOf("kind"), " is ", DescribeJson(kind),
                              "; use \"gpu\" or \"cpu\""));
  }
  return DeviceKind::kGpu;
}

void ReadDevice(const json& value, std::string path, JsonProblems& problems,
                std::vector<Device>& devices) {
  JsonReader reader(value, std::move(path), problems);
  Device device;
  device.kind = ReadKind(reader, problems);
  const int64_t count = reader.IntegerOr("count", 1, 1, kMaxDevicesPerHost);
  device.model = reader.TextOr("model", "");
  device.bus_id = reader.TextOr("bus_id", "");
  device.memory_bytes = reader.IntegerOr("memory_bytes", 0, 0, kMaxMemory);
  device.socket = reader.IntegerOr("socket", 0, 0, kMaxDomain);
  device.numa_node = reader.IntegerOr("numa_node", 0, 0, kMaxDomain);
  device.nvlink_domain = reader.IntegerOr("nvlink_domain", Device::kNoNvlink,
                                          Device::kNoNvlink, kMaxDomain);
  reader.RefuseOtherKeys();
  const int64_t room =
      kMaxDevicesPerHost + 1 - static_cast<int64_t>(devices.size());
  devices.insert(devices.end(), static_cast<size_t>(std::min(count, room)),
                 device);
}

void ReadLink(const json& value, std::string path, JsonProblems& problems,
              LinkSpeed& link) {
  JsonReader reader(value, std::move(path), problems);
  const std::string kind =
      reader.TextOr("kind", std::string(LinkKindName(link.kind)));
  if (const std::optional<LinkKind> known = ParseLinkKind(kind)) {
    link.kind = *known;
  } else {
    problems.Add(absl::StrCat(reader.PathOf("kind"), " is ", DescribeJson(kind),
                              "; use one of ", LinkKindNames()));
  }
  link.latency = reader.NumberOr("latency", link.latency, 0);
  link.bandwidth = reader.NumberOr("bandwidth", link.bandwidth, 0);
  reader.RefuseOtherKeys();
}

void ReadLinks(const json& value, const std::string& path,
               JsonProblems& problems, LinkTable& links) {
  JsonReader reader(value, path, problems);
  for (LinkLevel level : kAllLinkLevels) {
    const std::string_view name = LinkLevelName(level);
    if (const json* link = reader.FindObject(name)) {
      ReadLink(*link, reader.PathOf(name), problems, LinkAt(links, level));
    }
  }
  reader.RefuseOtherKeys();
}

HostGroup ReadHost(const json& value, std::string path,
                   JsonProblems& problems) {
  JsonReader reader(value, std::move(path), problems);
  HostGroup group;
  group.name = reader.Text("name");
  group.count = reader.IntegerOr("count", 1, 1, kMaxHosts);
  group.nvlink_hosts = reader.IntegerOr("nvlink_hosts", 1, 1, kMaxHosts);
  if (const json* devices = reader.FindArray("devices")) {
    for (size_t i = 0; i < devices->size(); ++i) {
      // One device too many is enough to report the problem.
      if (group.devices.size() > static_cast<size_t>(kMaxDevicesPerHost)) break;
      ReadDevice((*devices)[i],
                 absl::StrCat(reader.PathOf("devices"), "[", i, "]"), problems,
                 group.devices);
    }
  }
  const bool has_gpu =
      std::any_of(group.devices.begin(), group.devices.end(),
                  [](const Device& d) { return d.kind == DeviceKind::kGpu; });
  const auto devices = static_cast<int64_t>(group.devices.size());
  group.nics = reader.IntegerOr(
      "nics", has_gpu ? std::clamp<int64_t>(devices, 1, kMaxNics) : 1, 1,
      kMaxNics);
  group.links = has_gpu ? GpuLinks() : CpuLinks();
  if (const json* links = reader.FindObject("links")) {
    ReadLinks(*links, reader.PathOf("links"), problems, group.links);
  }
  reader.RefuseOtherKeys();
  return group;
}

void CheckHeader(JsonReader& reader, JsonProblems& problems) {
  const std::string format = reader.TextOr("format", std::string(kFormat));
  if (format != kFormat) {
    problems.Add(absl::StrCat("format is ", DescribeJson(format), "; use \"",
                              kFormat, "\""));
  }
  reader.IntegerOr("version", kVersion, kVersion, kVersion);
}

ordered_json LinksToJson(const LinkTable& links) {
  ordered_json value;
  for (LinkLevel level : kAllLinkLevels) {
    const LinkSpeed& link = LinkAt(links, level);
    value[std::string(LinkLevelName(level))] = {
        {"kind", std::string(LinkKindName(link.kind))},
        {"latency", link.latency},
        {"bandwidth", link.bandwidth}};
  }
  return value;
}

ordered_json DeviceToJson(const Device& device, int64_t count) {
  return {{"kind", std::string(DeviceKindName(device.kind))},
          {"count", count},
          {"model", device.model},
          {"bus_id", device.bus_id},
          {"memory_bytes", device.memory_bytes},
          {"socket", device.socket},
          {"numa_node", device.numa_node},
          {"nvlink_domain", device.nvlink_domain}};
}

ordered_json DevicesToJson(const std::vector<Device>& devices) {
  ordered_json value = ordered_json::array();
  for (size_t first = 0; first < devices.size();) {
    size_t end = first + 1;
    while (end < devices.size() && devices[end] == devices[first]) ++end;
    value.push_back(
        DeviceToJson(devices[first], static_cast<int64_t>(end - first)));
    first = end;
  }
  return value;
}

}  // namespace

absl::StatusOr<double> ParseBandwidth(std::string_view text) {
  constexpr std::string_view kExpected =
      "a number above 0 with a unit, such as 450GB, 12.5GB/s or 400Gb/s (a "
      "small b is bits)";
  std::string_view rest = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumeSuffix(&rest, "/s")) absl::ConsumeSuffix(&rest, "ps");
  const bool is_bits = absl::ConsumeSuffix(&rest, "b");
  if (rest.empty()) return Invalid("bandwidth", text, kExpected);
  const absl::StatusOr<ByteSize> size =
      ParseByteSize(is_bits ? absl::StrCat(rest, "B") : std::string(rest));
  if (!size.ok() || size->bytes() == 0) {
    return Invalid("bandwidth", text, kExpected);
  }
  return static_cast<double>(size->bytes()) / (is_bits ? 8 : 1);
}

absl::StatusOr<double> ParseLatency(std::string_view text) {
  constexpr std::string_view kExpected =
      "a number of at most 1000 s with a unit, such as 3.4us, 500ns or 1ms";
  const std::string_view trimmed = absl::StripAsciiWhitespace(text);
  for (const auto& [unit, exponent] : kTimeUnits) {
    std::string_view number = trimmed;
    if (!absl::ConsumeSuffix(&number, unit)) continue;
    double seconds = 0;
    if (!IsPlainDecimal(number) || number.size() > 40 ||
        !absl::SimpleAtod(absl::StrCat(number, exponent), &seconds) ||
        seconds > kMaxLatency) {
      break;
    }
    return seconds;
  }
  return Invalid("latency", text, kExpected);
}

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

absl::StatusOr<Cluster> ClusterFromJson(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const json document,
                           ParseJson(text, {.max_bytes = kMaxClusterJsonBytes}),
                           Annotate(_, "cluster JSON"));
  JsonProblems problems;
  JsonReader reader(document, "", problems);
  CheckHeader(reader, problems);
  std::vector<HostGroup> groups;
  const json& hosts = reader.Array("hosts");
  for (size_t i = 0; i < hosts.size(); ++i) {
    groups.push_back(
        ReadHost(hosts[i], absl::StrCat("hosts[", i, "]"), problems));
  }
  reader.RefuseOtherKeys();
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("cluster JSON"));
  return Cluster::Create(std::move(groups));
}

std::string ClusterToJson(const Cluster& cluster) {
  ordered_json hosts = ordered_json::array();
  for (const HostGroup& group : cluster.groups()) {
    hosts.push_back({{"name", group.name},
                     {"count", group.count},
                     {"nics", group.nics},
                     {"nvlink_hosts", group.nvlink_hosts},
                     {"devices", DevicesToJson(group.devices)},
                     {"links", LinksToJson(group.links)}});
  }
  const ordered_json document = {{"format", std::string(kFormat)},
                                 {"version", kVersion},
                                 {"hosts", std::move(hosts)}};
  return document.dump(2) + "\n";
}

absl::StatusOr<Cluster> LoadCluster(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(path, static_cast<int64_t>(kMaxClusterJsonBytes)));
  TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ClusterFromJson(text),
                           Annotate(_, absl::StrCat("\"", path, "\"")));
  return cluster;
}

absl::Status SaveCluster(const Cluster& cluster, const std::string& path) {
  return WriteFile(path, ClusterToJson(cluster));
}

}  // namespace tessera::topology
