// What FindPlacement says about one axis of the order it chose: levels, bytes
// that leave hosts, and warnings. Looks at every rank.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_AXIS_REPORT_H_
#define TESSERA_TOPOLOGY_PLACEMENT_AXIS_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "topology/cluster/cluster.h"
#include "topology/placement/placement.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {

struct AxisReport {
  AxisPlacement placement;  // All but seconds_per_step.
  // Bytes that leave each host in a step.
  std::vector<double> host_bytes;
  // A group that crosses the network, and one that does not; -1 where there is
  // none. A group is given by its first rank.
  int64_t crossing_group = -1;
  int64_t inner_group = -1;
};

// O(world_size), and O(world_size * size) for an all-to-all on hosts that share
// NVLink domains.
AxisReport ReportAxis(const AxisTraffic& traffic, int64_t stride,
                      int64_t world_size, const Cluster& cluster);

// Warnings about an axis, none where all is well.
std::vector<std::string> AxisWarnings(const AxisReport& report,
                                      const Cluster& cluster);

// Warnings about the mesh as a whole: idle devices, uneven hosts.
std::vector<std::string> WorldWarnings(int64_t world_size,
                                       const Cluster& cluster);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_AXIS_REPORT_H_
