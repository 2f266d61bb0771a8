// RankLocation, the host and socket on which a rank runs, and HostHierarchy,
// which builds the Hierarchy for algorithms that reduce traffic between hosts
// and between sockets.
//
//   CommunicatorOptions options;
//   TESSERA_ASSIGN_OR_RETURN(const RankLocation here, RankLocation::Self());
//   TESSERA_ASSIGN_OR_RETURN(const std::vector<RankLocation> locations,
//                            ExchangeLocations(*engine, here, timeout));
//   options.hierarchy = HostHierarchy(locations);
//   TESSERA_ASSIGN_OR_RETURN(
//       auto communicator,
//       Communicator::Create(std::move(engine), std::move(options)));
//
// For engines that span hosts. Each container counts as a host (HostId).
#ifndef TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_
#define TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

struct RankLocation {
  std::string host;               // HostId, or any other name of the host.
  std::optional<int64_t> socket;  // Index on that host; nullopt if unknown.

  // This process: HostId::Self and the socket of its affinity mask, which is
  // unknown if the mask spans several. Errors of HostId::Self.
  static absl::StatusOr<RankLocation> Self();

  friend bool operator==(const RankLocation&, const RankLocation&) = default;
};

// The locations of all ranks of the engine, by rank. A collective on a separate
// group, whose errors it returns.
absl::StatusOr<std::vector<RankLocation>> ExchangeLocations(
    Engine& engine, const RankLocation& mine, absl::Duration timeout);

// locations[r] is the location of rank r. Levels, innermost first: sockets,
// hosts. A level is omitted if its groups hold one rank each, if it has one
// group, or if the next level has the same groups. Returns null if no level is
// left. A host counts as one socket if the socket of any of its ranks is
// unknown.
std::shared_ptr<const Hierarchy> HostHierarchy(
    std::span<const RankLocation> locations);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_HOST_HIERARCHY_H_
