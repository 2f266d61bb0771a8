// Cluster: hosts, their devices, and the link between any two devices.
#ifndef TESSERA_TOPOLOGY_CLUSTER_CLUSTER_H_
#define TESSERA_TOPOLOGY_CLUSTER_CLUSTER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/strong_int.h"

namespace tessera::topology {

// The distance between two devices, nearest first.
enum class LinkLevel {
  kDevice,    // The same device.
  kNvlink,    // The same NVLink domain, within a host or across hosts.
  kNumaNode,  // The same NUMA node: a PCIe switch, or shared memory.
  kSocket,    // The same socket, another NUMA node.
  kHost,      // The same host, another socket.
  kNetwork,   // Another host.
};

inline constexpr int kLinkLevels = 6;
inline constexpr std::array<LinkLevel, kLinkLevels> kAllLinkLevels = {
    LinkLevel::kDevice, LinkLevel::kNvlink, LinkLevel::kNumaNode,
    LinkLevel::kSocket, LinkLevel::kHost,   LinkLevel::kNetwork};

// The medium of a link.
enum class LinkKind {
  kMemory,
  kNvlink,
  kPcie,
  kSharedMemory,
  kSocketInterconnect,  // UPI, Infinity Fabric.
  kInfiniband,
  kEthernet,
};

inline constexpr int kLinkKinds = 7;

// A message costs latency + bytes / bandwidth (the alpha-beta or Hockney model:
// R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20,
// 1994). Bandwidths are those of one direction, as seen by one device. Data
// sheets often add both directions: NVLink 4's 900 GB/s is 450e9 here.
struct LinkSpeed {
  LinkKind kind = LinkKind::kMemory;
  double latency = 0;    // Seconds, finite, at least 0.
  double bandwidth = 1;  // Bytes per second, finite, above 0.

  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};

// The speed at each level of one host. kNetwork is the speed of one card.
using LinkTable = std::array<LinkSpeed, kLinkLevels>;

inline LinkSpeed& LinkAt(LinkTable& table, LinkLevel level) {
  return table[static_cast<size_t>(level)];
}
inline const LinkSpeed& LinkAt(const LinkTable& table, LinkLevel level) {
  return table[static_cast<size_t>(level)];
}

// A level with its speed, as Cluster::LinkBetween returns it.
struct Link {
  LinkLevel level = LinkLevel::kDevice;
  LinkSpeed speed;

  friend bool operator==(const Link&, const Link&) = default;
};

// "device", "nvlink", "numa_node", "socket", "host", "network".
std::string_view LinkLevelName(LinkLevel level);

// "memory", "nvlink", "pcie", "shared_memory", "socket_interconnect",
// "infiniband", "ethernet".
std::string_view LinkKindName(LinkKind kind);
std::optional<LinkKind> ParseLinkKind(std::string_view name);

// All kinds, separated by ", ", for messages.
std::string LinkKindNames();

// Figures of a host with GPUs, after one HGX H100 board with a 400 Gb/s card
// for each GPU:
//   level      bandwidth  source
//   device     3.35 TB/s  HBM3, NVIDIA H100 data sheet
//   nvlink     450 GB/s   900 GB/s in both directions, same data sheet
//   numa_node  63 GB/s    PCIe 5.0 x16: 32 GT/s * 16 lanes * 128/130 / 8
//   socket     63 GB/s    as numa_node
//   host       22 GB/s    UPI of Sapphire Rapids as NCCL counts it
//                         (SRP_QPI_BW, nccl/src/graph/topo.h)
//   network    50 GB/s    NDR InfiniBand, 400 Gb/s
// Latencies of nvlink (3.4 us), numa_node and socket (5.7 us) and network
// (14 us) are a ring step of NCCL's Simple protocol (hwLat,
// nccl/src/graph/tuning.cc); host takes the PCIe figure twice. Figures measured
// on the cluster at hand are better than any default.
LinkTable GpuLinks();

// Figures of a host whose ranks are processes on CPU cores: the order of
// magnitude of one core copying through shared memory (10 GB/s within a NUMA
// node, 8 between those of a socket, 5 between sockets; 1, 1.5 and 2 us) and of
// 100 Gb/s Ethernet (12.5 GB/s, 20 us). They rank the levels; measure for more.
LinkTable CpuLinks();

inline std::ostream& operator<<(std::ostream& os, LinkLevel level) {
  return os << LinkLevelName(level);
}
inline std::ostream& operator<<(std::ostream& os, LinkKind kind) {
  return os << LinkKindName(kind);
}

enum class DeviceKind {
  kGpu,
  kCpu,  // A slot for one rank: a core or a processing unit.
};

// "gpu" or "cpu".
std::string_view DeviceKindName(DeviceKind kind);

// A device holds one rank.
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

// `count` identical hosts, named node0, node1, ...; a group of one host keeps
// the name unchanged. Cluster::Create checks it.
struct HostGroup {
  std::string name = "host";
  int64_t count = 1;
  std::vector<Device> devices;
  LinkTable links = GpuLinks();
  // Network cards of a host, each as fast as `links` says for kNetwork. All
  // concurrent traffic out of a host shares them.
  int64_t nics = 1;
  // An NVLink domain spans this many consecutive hosts of the group (18 for a
  // GB200 NVL72 rack with 4 GPUs a host); divides `count`.
  int64_t nvlink_hosts = 1;

  friend bool operator==(const HostGroup&, const HostGroup&) = default;
};

// The limits that Cluster::Create and all readers enforce.
inline constexpr int64_t kMaxHosts = int64_t{1} << 20;
inline constexpr int64_t kMaxDevicesPerHost = 4096;
inline constexpr int64_t kMaxClusterDevices = int64_t{1} << 26;
inline constexpr int64_t kMaxNics = 1024;
inline constexpr int64_t kMaxDomain = 1'000'000;
inline constexpr size_t kMaxHostNameLength = 253;
inline constexpr size_t kMaxDeviceTextLength = 128;

// The problems of `groups`, one line each with its fix; empty if they are
// valid. Fields are named as in the JSON form: "hosts[3].devices[1].socket".
std::vector<std::string> HostProblems(const std::vector<HostGroup>& groups);

// The numbers of a device and of a host in the cluster.
using DeviceIndex = StrongInt<struct DeviceIndexTag>;
using HostIndex = StrongInt<struct HostIndexTag>;

// The location of a device, as Cluster::Locate returns it.
struct DevicePlace {
  HostIndex host;
  int64_t group = 0;   // The host's group, an index into groups().
  int64_t member = 0;  // The host's number in its group.
  int64_t local = 0;   // The device's number on its host.

  friend bool operator==(const DevicePlace&, const DevicePlace&) = default;
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ParseCluster("hosts=16,gpus=8"));
//   cluster.num_devices();                                       // 128
//   TESSERA_ASSIGN_OR_RETURN(
//       Link link, cluster.LinkBetween(DeviceIndex(7), DeviceIndex(8)));
//   link.level;                                   // LinkLevel::kNetwork
//   link.speed.bandwidth;                         // bytes per second
//
// Devices are numbered across the cluster: host by host, and within a host in
// the order its group lists them. Identical hosts are stored once, so memory
// depends on the number of groups, not of devices. Queries for one device take
// O(log groups). Immutable and cheap to copy; any thread may read it.
class Cluster {
 public:
  // InvalidArgument that lists what HostProblems finds (the first 20).
  static absl::StatusOr<Cluster> Create(std::vector<HostGroup> groups);

  int64_t num_hosts() const { return state_->first_host.back(); }
  int64_t num_devices() const { return state_->first_device.back(); }
  std::span<const HostGroup> groups() const { return state_->groups; }

  bool Contains(DeviceIndex device) const {
    return device.value() >= 0 && device.value() < num_devices();
  }
  bool Contains(HostIndex host) const {
    return host.value() >= 0 && host.value() < num_hosts();
  }

  // OutOfRange if the cluster has no such device or host; the message
  // says how many there are.
  absl::StatusOr<DevicePlace> Locate(DeviceIndex device) const;
  absl::StatusOr<HostIndex> HostOf(DeviceIndex device) const;
  absl::StatusOr<Device> DeviceAt(DeviceIndex device) const;
  absl::StatusOr<DeviceIndex> FirstDevice(HostIndex host) const;
  absl::StatusOr<int64_t> DeviceCount(HostIndex host) const;
  absl::StatusOr<std::string> HostName(HostIndex host) const;

  // The link between two devices, the same in both directions. Between hosts it
  // has the higher latency and the lower bandwidth of the two hosts' networks.
  // The bandwidth is that of one card, which other devices of the host may also
  // use.
  absl::StatusOr<Link> LinkBetween(DeviceIndex a, DeviceIndex b) const;

  // The same for results of Locate; never fails.
  Link LinkBetween(const DevicePlace& a, const DevicePlace& b) const;

  // Total bandwidth of all network cards of a host, in bytes per second in one
  // direction.
  absl::StatusOr<double> NetworkBandwidth(HostIndex host) const;

  friend bool operator==(const Cluster& a, const Cluster& b) {
    return a.state_->groups == b.state_->groups;
  }

 private:
  struct State {
    std::vector<HostGroup> groups;
    // The first host and device of each group, and the total numbers at the
    // end.
    std::vector<int64_t> first_host;
    std::vector<int64_t> first_device;
  };

  explicit Cluster(std::shared_ptr<const State> state)
      : state_(std::move(state)) {}

  absl::Status CheckHost(HostIndex host) const;
  size_t GroupOf(HostIndex host) const;
  const HostGroup& GroupAt(int64_t group) const {
    return state_->groups[static_cast<size_t>(group)];
  }

  std::shared_ptr<const State> state_;
};

// A readable line: "16 hosts, 128 devices; 16 x 8 gpu (H100)".
std::string Describe(const Cluster& cluster);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_CLUSTER_H_
