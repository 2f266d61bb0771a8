// A cluster from one line of text, for flags and tests.
//
//   ParseCluster("hosts=16,gpus=8")                    // 16 HGX H100 hosts
//   ParseCluster("hosts=4,gpus=8,sockets=2,nvlink=none,network=100Gb,nics=1")
//   ParseCluster("hosts=18,gpus=4,nvlink_hosts=18,nvlink=900GB")  // NVL72
//   ParseCluster("hosts=2,cpus=4")                     // no GPU
//
// key=value items, separated by commas, in any order, each at most once:
//
//   hosts         how many hosts; 1
//   gpus | cpus   devices of each host: GPUs, or slots for ranks on CPUs. One
//                 of the two is required
//   sockets       CPU sockets of a host; 1. Devices are spread evenly, the
//                 first sockets taking one more where it does not divide
//   numa          NUMA nodes of a socket; 1
//   memory        of each device, such as 80GB; unknown
//   nvlink        bandwidth, or none; 450GB for gpus, none for cpus
//   numa_node     bandwidth within a NUMA node: PCIe, or shared memory
//   socket        bandwidth between the NUMA nodes of a socket
//   host          bandwidth between the sockets of a host
//   network       bandwidth of one network card
//   nics          network cards of a host; one a GPU, or 1 for cpus
//   nvlink_hosts  consecutive hosts that share an NVLink domain; 1
//   name          host names are name0, name1, ...; host
//   nvlink_latency, numa_node_latency, socket_latency, host_latency,
//   network_latency   such as 3.4us
//
// Bandwidths are of one direction: 450GB, 450GB/s, 400Gb/s. Defaults, with
// their sources, are GpuLinks() and CpuLinks() in link.h.
#ifndef TESSERA_TOPOLOGY_CLUSTER_CLUSTER_SPEC_H_
#define TESSERA_TOPOLOGY_CLUSTER_CLUSTER_SPEC_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"

namespace tessera::topology {

// InvalidArgument where the text is not such a line: an unknown, repeated or
// missing key, a number that is not within its limits, a malformed figure. The
// message quotes the item and says what is allowed.
absl::StatusOr<Cluster> ParseCluster(std::string_view spec);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_CLUSTER_SPEC_H_
