// HostHierarchy: which ranks of a world share a host, for algorithms that send
// less between hosts.
//
//   CommunicatorOptions options;
//   TESSERA_ASSIGN_OR_RETURN(options.hierarchy, HostHierarchy(*engine,
//   timeout)); communicator = Communicator::Create(std::move(engine),
//   std::move(options));
//
// For engines that span hosts. Containers count as hosts (HostId).
#ifndef TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_
#define TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/engine/engine.h"
#include "topology/cluster/cluster.h"

namespace tessera::collectives {

// A collective of all ranks of the engine, on a group beside it. Null where
// there is nothing to tell apart: all ranks are on one host, or no two of them
// are. Errors are the group's, and HostId::Self's.
absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, absl::Duration timeout);

// The same where this rank's host is told by its caller.
absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, std::string_view host, absl::Duration timeout);

// HierarchyOf: the hierarchy of ranks that run on the devices of a cluster.
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ParseCluster("hosts=4,gpus=8"));
//   TESSERA_ASSIGN_OR_RETURN(Hierarchy hierarchy, HierarchyOf(cluster, 32));

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

#endif  // TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_
