// AxisLinks: the time of messages along the axes of a mesh; AddPasses: the
// messages of the layers of a stage.
//
//   AxisLinks links(cluster, ranks);
//   links.Seconds(mesh, TrafficAxis::kTp, OpKind::kAllReduce, bytes, 12);
//
// Ranks are placed as in //tools/train: tensor ranks are neighbours, then
// context, data and pipeline ranks.
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

// Uses the alpha-beta model of topology/placement. Caches the links of each
// axis: one thread at a time.
class AxisLinks {
 public:
  AxisLinks(const topology::Cluster& cluster, int64_t ranks)
      : cluster_(cluster), ranks_(ranks) {}

  // `times` messages of `bytes` each; a kSend goes to the next rank of a ring.
  double Seconds(const train::MeshSizes& mesh, train::TrafficAxis axis,
                 collectives::OpKind kind, double bytes, double times);

  // A rank's messages along an axis in sequence: of one kind, and of all kinds.
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

// Adds the messages of `times` passes of a computing kind along the tensor,
// context and expert axes, by a formula, because a search prices thousands of
// stages. A test compares it with a dry run.
//
// clang-format off
// For a micro-batch and layer, with x the bytes of all its tokens on the rank:
//
//   tp            forward             whole backward      I                  W
//   plain         2 all_reduce x      2 all_reduce        the same           none
//   sequence      2 all_gather,       4 all_gather,       2 all_gather and   2 all_gather
//   parallel      2 reduce_scatter    2 reduce_scatter    2 reduce_scatter
//
// The MLP of a mixture of experts has the same messages, but W has one all_gather for it; a
// shared expert adds those of an MLP, whose backward is I and W. ep, with k experts of a token and E of a layer:
//
//   forward         all_to_all of E counts, k x, k weights of a token, k x
//   backward, I     all_to_all of k x, k x, k weights of a token
//
// A recomputed layer adds 1 all_reduce, or 2 all_gather and 1 reduce_scatter, and the
// forward's messages of ep but the last. cp: keys
// and values pass round n ranks in n - 1 messages, again in the backward, and their
// gradients in n.
// clang-format on
void AddPasses(const train::StageShapes& shapes, pipeline::ActionKind kind,
               int64_t times, train::RankTraffic& traffic);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_TRAFFIC_H_
