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

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// A collective of all ranks of the engine, on a group beside it. Null where
// there is nothing to tell apart: all ranks are on one host, or no two of them
// are. Errors are the group's, and HostId::Self's.
absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, absl::Duration timeout);

// The same where this rank's host is told by its caller.
absl::StatusOr<std::shared_ptr<const Hierarchy>> HostHierarchy(
    Engine& engine, std::string_view host, absl::Duration timeout);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_
