// Describes this machine as a cluster of one host, using hwloc and NVML.
//
//   TESSERA_ASSIGN_OR_RETURN(DiscoveredCluster found, DiscoverCluster({}));
//   found.cluster.num_devices();
//
// With GPUs, the devices are the GPUs, each with its socket, NUMA node, memory
// and NVLink domain. Without, the devices are slots for ranks, one for each
// core or hardware thread that the process may use, or several if there are
// more ranks.
//
// Link levels and NVLink's bandwidth are detected; other speeds are the
// defaults of cluster.h. The network cannot be detected from one host.
#ifndef TESSERA_TOPOLOGY_DISCOVERY_CLUSTER_DISCOVERY_H_
#define TESSERA_TOPOLOGY_DISCOVERY_CLUSTER_DISCOVERY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"
#include "topology/discovery/machine_topology.h"
#include "topology/discovery/nvml.h"

namespace tessera::topology {

enum class CpuSlot { kCore, kHardwareThread };

inline constexpr int64_t kMaxSlotsPerCore = 16;

struct DiscoveryOptions {
  std::string host_name = {};  // Empty: the system's.
  MachineSource machine = {};
  std::string nvml_library{kNvmlLibrary};  // Empty: do not query NVML.
  CpuSlot cpu_slot = CpuSlot::kCore;
  bool use_gpus = true;  // False: CPU slots even with GPUs.
  // If there are fewer CPU slots than ranks, each core or thread has the same
  // number of slots, at most kMaxSlotsPerCore, and a note says so.
  int64_t ranks = 1;
};

struct DiscoveredCluster {
  Cluster cluster;
  MachineTopology machine;
  // One sentence for each fact that was not detected, with the assumption made
  // instead.
  std::vector<std::string> notes;
};

// Unimplemented without hwloc, and the errors of ReadMachineTopology. A machine
// without NVML is not an error: GPUs found on the PCI bus then have unknown
// memory and no NVLink, and a note says so.
absl::StatusOr<DiscoveredCluster> DiscoverCluster(
    const DiscoveryOptions& options);

// Returns an NVLink domain for each of n GPUs, given which pairs are linked.
// All pairs within a domain are linked. If links are not all-to-all (a DGX-1's
// cube), a GPU joins the first domain of whose GPUs it reaches all. A GPU that
// shares its domain with no other has Device::kNoNvlink. A link counts only if
// both ends report it.
std::vector<int64_t> NvlinkDomains(
    const std::vector<std::vector<bool>>& linked);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_CLUSTER_DISCOVERY_H_
