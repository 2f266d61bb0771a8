// Link: what two devices talk over, and how fast.
//
//   LinkTable links = GpuLinks();
//   LinkAt(links, LinkLevel::kNetwork).bandwidth = 100e9;
//
// A link costs latency + bytes / bandwidth for a message (the alpha-beta or
// Hockney model: R. W. Hockney, "The communication challenge for MPP",
// Parallel Computing 20, 1994). Latencies are seconds; bandwidths are bytes
// per second in one direction, as seen by one device. Data sheets often add
// both directions up: NVLink 4's 900 GB/s is 450e9 here.
#ifndef TESSERA_TOPOLOGY_CLUSTER_LINK_H_
#define TESSERA_TOPOLOGY_CLUSTER_LINK_H_

#include <array>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace tessera::topology {

// How far apart two devices are, nearest first.
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

// What carries the bytes.
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

struct LinkSpeed {
  LinkKind kind = LinkKind::kMemory;
  double latency = 0;    // Seconds, finite, at least 0.
  double bandwidth = 1;  // Bytes per second, finite, above 0.

  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};

// The speed at each level of one host; that of kNetwork is one network card's.
using LinkTable = std::array<LinkSpeed, kLinkLevels>;

inline LinkSpeed& LinkAt(LinkTable& table, LinkLevel level) {
  return table[static_cast<size_t>(level)];
}
inline const LinkSpeed& LinkAt(const LinkTable& table, LinkLevel level) {
  return table[static_cast<size_t>(level)];
}

// A level with its speed: the answer of Cluster::LinkBetween.
struct Link {
  LinkLevel level = LinkLevel::kDevice;
  LinkSpeed speed;

  friend bool operator==(const Link&, const Link&) = default;
};

// "device", "nvlink", "numa_node", "socket", "host", "network".
std::string_view LinkLevelName(LinkLevel level);
std::optional<LinkLevel> ParseLinkLevel(std::string_view name);

// "memory", "nvlink", "pcie", "shared_memory", "socket_interconnect",
// "infiniband", "ethernet".
std::string_view LinkKindName(LinkKind kind);
std::optional<LinkKind> ParseLinkKind(std::string_view name);

// All names, separated by ", ", for messages.
std::string LinkLevelNames();
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

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_LINK_H_
