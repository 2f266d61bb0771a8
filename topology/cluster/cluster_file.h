// Reads and writes clusters as text: one line in flags, JSON in files.
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster a, ParseCluster("hosts=16,gpus=8"));
//   TESSERA_RETURN_IF_ERROR(SaveCluster(a, "cluster.json"));
//   TESSERA_ASSIGN_OR_RETURN(Cluster b, LoadCluster("cluster.json"));
//
// topology/README.md describes the JSON format.
#ifndef TESSERA_TOPOLOGY_CLUSTER_CLUSTER_FILE_H_
#define TESSERA_TOPOLOGY_CLUSTER_CLUSTER_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"

namespace tessera::topology {

// Bytes per second. A number with a unit of base/byte_size.h, and then "/s",
// "ps" or nothing. A unit that ends in a small b counts bits: 100Gb is 12.5GB.
// InvalidArgument if the text is anything else, or is not above 0.
absl::StatusOr<double> ParseBandwidth(std::string_view text);

// Seconds. A decimal number and one of s, ms, us, ns; at least 0 and at most
// 1000 s. InvalidArgument if the text is anything else.
absl::StatusOr<double> ParseLatency(std::string_view text);

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
//                 first sockets taking one more if it does not divide
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
// their sources, are GpuLinks() and CpuLinks().
//
// InvalidArgument if the text is not such a line: an unknown, repeated or
// missing key, a number outside its limits, or a malformed bandwidth, latency
// or size. The message quotes the item and says what is allowed.
absl::StatusOr<Cluster> ParseCluster(std::string_view spec);

// The largest text that is read.
inline constexpr size_t kMaxClusterJsonBytes = size_t{64} << 20;

// Reads the format, filling in the defaults of GpuLinks() and CpuLinks().
// InvalidArgument, never an exception, if the text is not JSON, is larger
// than kMaxClusterJsonBytes or nested deeper than 16, or is not a cluster; the
// message lists the first 20 problems, each by its path: "hosts[3].count is
// \"two\"; use a whole number from 1 to 1048576".
absl::StatusOr<Cluster> ClusterFromJson(std::string_view text);

// Indented JSON with every field spelled out and runs of equal devices written
// once, ending in a newline. ClusterFromJson restores an equal cluster, bit for
// bit in every number.
std::string ClusterToJson(const Cluster& cluster);

// The cluster in the file. NotFound if there is no such file, another code
// of the system if it cannot be read, and InvalidArgument as
// ClusterFromJson; every message names the file.
absl::StatusOr<Cluster> LoadCluster(const std::string& path);

// Writes or replaces the file atomically: readers of `path`, also after a
// crash, see the old content or the new. Writes a temporary file in the same
// directory, which must exist and be writable, and renames it. If that fails,
// the temporary file is removed and `path` is unchanged.
absl::Status SaveCluster(const Cluster& cluster, const std::string& path);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_CLUSTER_FILE_H_
