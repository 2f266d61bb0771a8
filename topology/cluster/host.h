// HostGroup: hosts that are alike, with the devices each of them has.
//
//   HostGroup group;
//   group.name = "node";
//   group.count = 16;                    // node0 ... node15
//   group.devices.resize(8);
//   for (Device& device : group.devices) device.nvlink_domain = 0;
//   group.nics = 8;
//
// A plain struct; Cluster::Create checks it. A host of its own is a group with
// count 1, and has the group's name unchanged.
#ifndef TESSERA_TOPOLOGY_CLUSTER_HOST_H_
#define TESSERA_TOPOLOGY_CLUSTER_HOST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "topology/cluster/link.h"

namespace tessera::topology {

enum class DeviceKind {
  kGpu,
  kCpu,  // A slot for one rank: a core or a processing unit.
};

// "gpu" or "cpu".
std::string_view DeviceKindName(DeviceKind kind);

// What holds one rank.
struct Device {
  static constexpr int64_t kNoNvlink = -1;

  DeviceKind kind = DeviceKind::kGpu;
  std::string model;         // "NVIDIA H100 80GB HBM3"; may be empty.
  std::string bus_id;        // PCI address of a GPU; may be empty.
  int64_t memory_bytes = 0;  // 0 where it is not known.
  int64_t socket = 0;
  int64_t numa_node = 0;
  // Devices of a host that have the same domain reach each other over NVLink,
  // each pair directly or through a switch.
  int64_t nvlink_domain = kNoNvlink;

  friend bool operator==(const Device&, const Device&) = default;
};

struct HostGroup {
  std::string name = "host";
  int64_t count = 1;
  std::vector<Device> devices;
  LinkTable links = GpuLinks();
  // Network cards of a host, each as fast as `links` says for kNetwork. What
  // leaves a host at one time shares them.
  int64_t nics = 1;
  // An NVLink domain stretches over this many consecutive hosts of the group
  // (18 for a GB200 NVL72 rack with 4 GPUs a host); divides `count`.
  int64_t nvlink_hosts = 1;

  friend bool operator==(const HostGroup&, const HostGroup&) = default;
};

// The limits that Cluster::Create and every reader keep.
inline constexpr int64_t kMaxHosts = int64_t{1} << 20;
inline constexpr int64_t kMaxDevicesPerHost = 4096;
inline constexpr int64_t kMaxClusterDevices = int64_t{1} << 26;
inline constexpr int64_t kMaxNics = 1024;
inline constexpr int64_t kMaxDomain = 1'000'000;
inline constexpr size_t kMaxHostNameLength = 253;
inline constexpr size_t kMaxDeviceTextLength = 128;

// Everything that is wrong with `groups`, a line each with its fix; empty where
// they make a cluster. Places are named as in the JSON form:
// "hosts[3].devices[1].socket".
std::vector<std::string> HostProblems(const std::vector<HostGroup>& groups);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_HOST_H_
