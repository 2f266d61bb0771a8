// HierarchyOf: the hierarchy of ranks that run on the devices of a cluster.
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ParseCluster("hosts=4,gpus=8"));
//   TESSERA_ASSIGN_OR_RETURN(Hierarchy hierarchy, HierarchyOf(cluster, 32));
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_CLUSTER_HIERARCHY_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_CLUSTER_HIERARCHY_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "collectives/algorithms/hierarchy.h"
#include "topology/cluster/cluster.h"

namespace tessera::collectives {

// Rank i runs on devices[i]. Levels, innermost first, of those that tell ranks
// apart: the NUMA nodes, sockets and hosts of the devices; for devices with
// NVLink, within which all are equally near, their NVLink domains in place of
// NUMA nodes and sockets, and of hosts where a domain spans several. The
// outermost level is always there. Devices may be shared by ranks.
// InvalidArgument where there are no ranks; OutOfRange where the cluster has no
// such device.
absl::StatusOr<Hierarchy> HierarchyOf(
    const topology::Cluster& cluster,
    std::span<const topology::DeviceIndex> devices);

// Rank i runs on device i, as topology::Placement has it.
absl::StatusOr<Hierarchy> HierarchyOf(const topology::Cluster& cluster,
                                      int64_t ranks);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_CLUSTER_HIERARCHY_H_
