// The time of messages along the axes of a mesh (AxisLinks), and the messages
// of the layers of a stage (AddPasses).
//
//   AxisLinks links(cluster, ranks);
//   links.Seconds(mesh, TrafficAxis::kTp, OpKind::kAllReduce, bytes, 12);
//
// Ranks are placed as in //tools/train: tensor ranks vary fastest, followed by
// context, data and pipeline ranks.
#ifndef TESSERA_TOOLS_PLAN_TRAFFIC_H_
#define TESSERA_TOOLS_PLAN_TRAFFIC_H_

#include <cstdint>
#include <map>
#include <utility>

#include "collectives/operation/operation.h"
#include "pipeline/schedule/schedule.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/rank_traffic.h"
#include "tools/train/settings/run_options.h"
#include "topology/cluster/cluster.h"
#include "topology/placement/link_profile.h"

namespace tessera::plan {

// Uses the alpha-beta model of topology/placement. Caches the links of each
// axis. Not thread-safe.
class AxisLinks {
 public:
  AxisLinks(const topology::Cluster& cluster, int64_t ranks)
      : cluster_(cluster), ranks_(ranks) {}

  // The time of `times` messages of `bytes` each. A kSend goes to the next rank
  // of a ring or, along pp, of a chain.
  double Seconds(const train::MeshSizes& mesh, train::TrafficAxis axis,
                 collectives::OpKind kind, double bytes, double times);

  // The time of a rank's messages along an axis, one after another: those of
  // one kind, and those of all kinds.
  double SecondsOf(const train::MeshSizes& mesh, train::TrafficAxis axis,
                   collectives::OpKind kind, const train::RankTraffic& traffic);
  double SecondsAlong(const train::MeshSizes& mesh, train::TrafficAxis axis,
                      const train::RankTraffic& traffic);

 private:
  const topology::LinkProfile& ProfileOf(const train::MeshSizes& mesh,
                                         train::TrafficAxis axis);

  const topology::Cluster cluster_;
  const int64_t ranks_;
  // Indexed by the size and stride of the group.
  std::map<std::pair<int64_t, int64_t>, topology::LinkProfile> profiles_;
};

// Adds the messages along the tensor, context and expert axes of `times` passes
// of a computing kind. It uses a formula, which a test compares with a dry run,
// because a search prices thousands of stages.
//
// clang-format off
// Per micro-batch and layer, with x the bytes of all its tokens on the rank:
//
//   tp            forward             whole backward      I                  W
//   plain         2 all_reduce x      2 all_reduce        the same           none
//   sequence      2 all_gather,       4 all_gather,       2 all_gather and   2 all_gather
//   parallel      2 reduce_scatter    2 reduce_scatter    2 reduce_scatter
//
// A mixture of experts has the same tp messages as an MLP, except that its W
// has only one all_gather. A shared expert adds the messages of an MLP with
// backward passes I and W.
//
// ep, with k experts per token and E experts per layer:
//
//   forward         all_to_all of E counts, k x, k weights per token, k x
//   backward, I     all_to_all of k x, k x, k weights per token
//
// A fully recomputed layer adds 1 all_reduce, or 2 all_gather and
// 1 reduce_scatter, and the ep messages of the forward pass except the last.
//
// cp: keys and values circulate among n ranks in n - 1 messages in the forward
// pass and again in the backward pass, and their gradients in n messages.
// Recomputation of any kind repeats the cp messages of the forward pass.
// clang-format on
void AddPasses(const train::StageShapes& shapes, pipeline::ActionKind kind,
               int64_t times, train::RankTraffic& traffic);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_TRAFFIC_H_
