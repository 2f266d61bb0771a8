// AxisLinks: how long messages take along the axes of a mesh, given where the
// ranks are: tensor ranks next to each other, then context, data and pipeline
// ranks, as //tools/train lays them out.
//
//   AxisLinks links(cluster, ranks);
//   links.Seconds(mesh, TrafficAxis::kTp, OpKind::kAllReduce, bytes, 12);
#ifndef TESSERA_TOOLS_PLAN_TRAFFIC_H_
#define TESSERA_TOOLS_PLAN_TRAFFIC_H_

#include <cstdint>
#include <map>
#include <utility>

#include "collectives/operation/operation.h"
#include "pipeline/schedule/schedule.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/predict/pipeline_plan.h"
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

// AddPasses: what the layers of a stage send in one pass, along the tensor and
// the context axis: a formula, since a search prices thousands of stages. The
// test compares it with what a dry run counts.
//
// Of a micro-batch and layer, with x the bytes of all its tokens on the rank:
//
//   tp            forward             whole backward      I           W
//   plain         2 all_reduce x      2 all_reduce        the same    none
//   sequence      2 all_gather,       4 all_gather,       2 and 2     4
//   parallel      2 reduce_scatter    2 reduce_scatter all_gather
//
// and for a layer that is computed again 1 all_reduce, or 2 all_gather and 1
// reduce_scatter. cp: keys and values go round n ranks in n - 1 messages, in
// the backward again, and their gradients in n.

// Of `times` passes of a kind that computes.
void AddPasses(const train::StageShapes& shapes, pipeline::ActionKind kind,
               int64_t times, train::RankTraffic& traffic);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_TRAFFIC_H_
