// The cluster that this machine is, a single host, from hwloc and NVML.
//
//   TESSERA_ASSIGN_OR_RETURN(DiscoveredCluster found, DiscoverCluster({}));
//   found.cluster.num_devices();
//
// With a GPU: its devices are the GPUs, each with its socket, NUMA node, memory
// and NVLink domain. Without: its devices are slots for ranks, one for each
// core that the process may use, or for each hardware thread.
//
// Levels and NVLink's bandwidth are found; other figures are the defaults of
// link.h. One host cannot tell its network.
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

struct DiscoveryOptions {
  std::string host_name;  // Empty: the system's.
  MachineSource machine;
  std::string nvml_library{kNvmlLibrary};  // Empty: NVML is not asked.
  CpuSlot cpu_slot = CpuSlot::kCore;
  bool use_gpus = true;  // False: slots even where there are GPUs.
};

struct DiscoveredCluster {
  Cluster cluster;
  MachineTopology machine;
  // One sentence for each fact that was not found, with the assumption made
  // instead.
  std::vector<std::string> notes;
};

// Unimplemented without hwloc, and the errors of ReadMachineTopology. A machine
// without NVML is no error: GPUs on the PCI bus are then taken without memory
// and NVLink, and a note says so.
absl::StatusOr<DiscoveredCluster> DiscoverCluster(
    const DiscoveryOptions& options);

// A domain for each of n GPUs, from whether each pair is linked. Every pair of
// a domain is: where links do not reach from each to each (a DGX-1's cube), a
// GPU joins the first domain of which it reaches all. A GPU that reaches none
// has Device::kNoNvlink. A link counts if both ends see it.
std::vector<int64_t> NvlinkDomains(
    const std::vector<std::vector<bool>>& linked);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_CLUSTER_DISCOVERY_H_
