// Placement: finds the order of a mesh's axes that keeps the most expensive
// traffic on the fastest links.
//
//   TESSERA_ASSIGN_OR_RETURN(Cluster cluster, ParseCluster("hosts=16,gpus=8"));
//   TESSERA_ASSIGN_OR_RETURN(Placement placement,
//                            FindPlacement(traffic, cluster));
//   TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create(placement.order));
//   std::string text = Describe(placement);
//
// Rank r runs on device r of the cluster: the axis that varies fastest has its
// groups on neighbouring devices. Costs come from link_profile.h; axes
// communicate one after another, and groups of one axis at the same time.
//
// Limits: an axis is not split over two levels (a data axis into a part within
// and a part across hosts) unless its parts are given as separate axes, and
// hosts keep the cluster's order.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_PLACEMENT_H_
#define TESSERA_TOPOLOGY_PLACEMENT_PLACEMENT_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/cluster/cluster.h"
#include "topology/mesh.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {

// The placement of one axis on the cluster.
struct AxisPlacement {
  Axis axis;
  int64_t stride = 1;           // Distance of group neighbours in ranks.
  double seconds_per_step = 0;  // Sum over its transfers.
  // The number of groups whose farthest ring neighbours communicate at each
  // level, and the farthest level of all groups. Groups of one rank have
  // kDevice.
  std::array<int64_t, kLinkLevels> groups_at_level = {};
  LinkLevel worst_level = LinkLevel::kDevice;
  // Bytes that leave hosts over the network in a step: the total, and the
  // maximum for one host.
  double network_bytes = 0;
  double busiest_host_bytes = 0;
};

struct Placement {
  std::vector<Axis> order;          // Fastest first, as Mesh::Create takes it.
  std::vector<AxisPlacement> axes;  // In that order.
  double seconds_per_step = 0;      // The sum over axes.
  // The maximum number of bytes that leave one host in a step, for all axes
  // together.
  double busiest_host_bytes = 0;
  int64_t world_size = 1;
  int64_t device_count = 1;
  // Advice for the user, one sentence each.
  std::vector<std::string> warnings;
};

// Returns the order with the least cost. Among equal ones (to the picosecond)
// it is the one that comes first when orders are compared axis by axis, fastest
// first, by the positions of their axes in `traffic`.
//
// An axis costs the same whatever order the faster axes have among themselves,
// since only their product, its stride, matters. So the best order of every set
// of axes extends the best order of a smaller set (dynamic programming over
// subsets, as Held and Karp do, J. SIAM 10(1), 1962): 2^k * k steps for k axes,
// and one LinkProfile (see its cost) for each distinct size and stride.
//
// InvalidArgument as ValidateTraffic, and if there are more ranks than
// devices; the message gives both numbers.
absl::StatusOr<Placement> FindPlacement(std::span<const AxisTraffic> traffic,
                                        const Cluster& cluster);

// The cost of the order in which `traffic` lists the axes, fastest first.
// Errors as FindPlacement.
absl::StatusOr<Placement> EvaluatePlacement(
    std::span<const AxisTraffic> traffic, const Cluster& cluster);

// A readable table with a line for each axis, then the warnings.
std::string Describe(const Placement& placement);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_PLACEMENT_H_
