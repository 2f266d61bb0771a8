// AxisTraffic: what the ranks along one axis send each other in a step.
//
//   AxisTraffic tp{.axis = {"tp", AxisSize(8)},
//                  .transfers = {{CollectiveKind::kAllReduce, 64e6, 128}}};
#ifndef TESSERA_TOPOLOGY_PLACEMENT_TRAFFIC_H_
#define TESSERA_TOPOLOGY_PLACEMENT_TRAFFIC_H_

#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "topology/axis.h"

namespace tessera::topology {

enum class CollectiveKind {
  kAllReduce,      // bytes: the buffer of each rank.
  kAllGather,      // bytes: the gathered result.
  kReduceScatter,  // bytes: the input of each rank.
  kAllToAll,       // bytes: the input of each rank, equal parts for all.
  kSendRecv,  // bytes: each rank's message to the next; none from the last.
};

inline constexpr int kCollectiveKinds = 5;

// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv".
std::string_view CollectiveKindName(CollectiveKind kind);

inline std::ostream& operator<<(std::ostream& os, CollectiveKind kind) {
  return os << CollectiveKindName(kind);
}

struct Transfer {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  double bytes = 0;  // As the kind says. Finite, at least 0.
  double times = 1;  // How often in a step. Finite, at least 0.

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct AxisTraffic {
  Axis axis;
  std::vector<Transfer> transfers;

  friend bool operator==(const AxisTraffic&, const AxisTraffic&) = default;
};

// The axes alone, in the same order.
std::vector<Axis> AxesOf(std::span<const AxisTraffic> traffic);

// InvalidArgument as ValidateAxes, and where a transfer has bytes or times that
// are negative or not finite; the message names the axis and the value.
absl::Status ValidateTraffic(std::span<const AxisTraffic> traffic);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_TRAFFIC_H_
