// Clusters as JSON text. The format is described, with an example, in the
// README of topology/cluster.
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ClusterFromJson(text));
//   std::string same = ClusterToJson(cluster);
#ifndef TESSERA_TOPOLOGY_CLUSTER_CLUSTER_JSON_H_
#define TESSERA_TOPOLOGY_CLUSTER_CLUSTER_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"

namespace tessera::topology {

// The largest text that is read.
inline constexpr size_t kMaxClusterJsonBytes = size_t{64} << 20;

// Reads the format, filling in the defaults of GpuLinks() and CpuLinks().
// InvalidArgument, never an exception, where the text is no JSON, is larger
// than kMaxClusterJsonBytes or nested deeper than 16, or is no cluster; the
// message lists the problems (the first 20), each by its path: "hosts[3].count
// is
// \"two\"; use a whole number from 1 to 1048576".
absl::StatusOr<Cluster> ClusterFromJson(std::string_view text);

// Indented JSON with every field spelled out and runs of equal devices written
// once, ending in a newline. ClusterFromJson gives an equal cluster back, bit
// for bit in every figure.
std::string ClusterToJson(const Cluster& cluster);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CLUSTER_CLUSTER_JSON_H_
