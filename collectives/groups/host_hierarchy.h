// HostHierarchy and HierarchyOf: create the Hierarchy for algorithms that
// reduce traffic between hosts.
//
// HostHierarchy: groups ranks by host.
//
//   CommunicatorOptions options;
//   TESSERA_ASSIGN_OR_RETURN(options.hierarchy, HostHierarchy(*engine,
//   timeout)); communicator = Communicator::Create(std::move(engine),
//   std::move(options));
//
// For engines that span hosts. Each container counts as a host (HostId).
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

// A collective of all ranks of the engine, on a separate group. Null if all
// ranks are on one host or every rank is on its own. Errors are those of the
// group and of HostId::Self.
absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, absl::Duration timeout);

// The same with this rank's host given by the caller.
absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, std::string_view host, absl::Duration timeout);

// HierarchyOf: the hierarchy of ranks on the devices of a cluster.
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ParseCluster("hosts=4,gpus=8"));
//   TESSERA_ASSIGN_OR_RETURN(Hierarchy hierarchy, HierarchyOf(cluster, 32));

// Rank i runs on devices[i]; ranks may share devices. Levels, innermost first:
// the NUMA nodes, sockets and hosts of the devices; with NVLink its domains
// replace NUMA nodes and sockets, and hosts if a domain spans several. Levels
// that do not separate ranks are omitted except for the outermost.
// InvalidArgument if there are no ranks; OutOfRange if the cluster has no such
// device.
absl::StatusOr<Hierarchy> HierarchyOf(
    const topology::Cluster& cluster,
    std::span<const topology::DeviceIndex> devices);

// Rank i runs on device i, as in topology::Placement.
absl::StatusOr<Hierarchy> HierarchyOf(const topology::Cluster& cluster,
                                      int64_t ranks);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_
