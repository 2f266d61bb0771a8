#include "topology/cluster/cluster_json.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::topology {
namespace {

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
      // A problem of one device more is enough to say that they are too many.
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

}  // namespace tessera::topology
