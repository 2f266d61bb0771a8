// AxisLinks: how long messages take along the axes of a mesh, given where the
// ranks are: tensor ranks next to each other, then context, data and pipeline
// ranks, as //tools/train lays them out.
//
//   AxisLinks links(cluster, ranks);
//   links.Seconds(mesh, TrafficAxis::kTp, OpKind::kAllReduce, bytes, 12);
#ifndef TESSERA_TOOLS_PLAN_AXIS_LINKS_H_
#define TESSERA_TOOLS_PLAN_AXIS_LINKS_H_

#include <cstdint>
#include <map>
#include <utility>

#include "collectives/operation/operation.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/predict/rank_traffic.h"
#include "topology/cluster/cluster.h"
#include "topology/placement/link_profile.h"

namespace tessera::plan {

// By the alpha-beta model of topology/placement. One thread at a time: it
// remembers the links of each axis.
class AxisLinks {
 public:
  AxisLinks(const topology::Cluster& cluster, int64_t ranks)
      : cluster_(cluster), ranks_(ranks) {}

  // `times` messages of `bytes` each; of a kSend to the next rank of a ring.
  double Seconds(const train::MeshSizes& mesh, train::TrafficAxis axis,
                 collectives::OpKind kind, double bytes, double times);

  // A rank's messages of one kind along an axis, one after the other; and of
  // all kinds.
  double SecondsOf(const train::MeshSizes& mesh, train::TrafficAxis axis,
                   collectives::OpKind kind, const train::RankTraffic& traffic);
  double SecondsAlong(const train::MeshSizes& mesh, train::TrafficAxis axis,
                      const train::RankTraffic& traffic);

 private:
  const topology::LinkProfile& ProfileOf(const train::MeshSizes& mesh,
                                         train::TrafficAxis axis);

  const topology::Cluster cluster_;
  const int64_t ranks_;
  // By the group's size and stride.
  std::map<std::pair<int64_t, int64_t>, topology::LinkProfile> profiles_;
};

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_AXIS_LINKS_H_
