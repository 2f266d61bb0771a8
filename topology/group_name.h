// Names of groups and ranks, for logs, traces and look-up.
//
//   GroupName(mesh, "dp", Rank(5))       // "dp_group_tp1_pp1"
//   DescribeRank(mesh, Rank(3))          // "TP(2)-CP(1)-PP(2)-DP(2)-Rank(3)"
//
// A group's name is its axes and its coordinates along the other axes of their
// division: unique in the mesh, the same on every member, and independent of
// the mesh's order. Axes follow CanonicalAxisLess: dp, tp, pp, cp, ep, others.
#ifndef TESSERA_TOPOLOGY_GROUP_NAME_H_
#define TESSERA_TOPOLOGY_GROUP_NAME_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/mesh.h"

namespace tessera::topology {

// The name of the group of `rank` along `axes`: "tp_group_dp1_pp0" or, along
// several, "dp-cp_group_tp0_pp1". A group of the whole division, which has no
// other axes, is "dp-tp-pp_group". InvalidArgument as Mesh::GroupsAlong and
// where the mesh has no such rank.
absl::StatusOr<std::string> GroupName(const Mesh& mesh, std::string_view axes,
                                      Rank rank);

// The members, ascending, of the group of that name. InvalidArgument where it
// is no name of a group of `mesh`.
absl::StatusOr<std::vector<Rank>> FindGroup(const Mesh& mesh,
                                            std::string_view name);

// The sizes of the mesh's axes and the rank: TP, CP, PP and DP always (1 where
// the mesh has none), then the mesh's other axes in its order.
std::string DescribeRank(const Mesh& mesh, Rank rank);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_GROUP_NAME_H_
