// Layered: hierarchical algorithms. They run within each group first, then
// across groups, so that the slow links between groups carry as few bytes as
// possible.
//
// If all groups have the same size, an all-reduce is a reduce-scatter within
// each group, an all-reduce across groups (one for every position in a group,
// each with its part) and an all-gather within each group: a group sends one
// message's worth of bytes over the slow links, whatever its size. If group
// sizes differ or the message is small, leaders act for their groups. Levels
// nest: across groups the same steps apply to the next level. Plans are made
// for every operation, in O(ranks * levels).
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_LAYERED_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_LAYERED_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

class Layered {
 public:
  // `hierarchy` covers the ranks of `group` and must outlive this. Chunks of
  // `chunk` elements.
  Layered(const RankGroup& group, const Hierarchy& hierarchy, int64_t chunk);

  // The same arguments as the functions of ring.h, trees.h, ...
  absl::Status AllReduce(int64_t count, ConstVectorView input,
                         VectorView output, const Reducer& reducer);
  absl::Status Reduce(int64_t root, int64_t count, ConstVectorView input,
                      VectorView output, const Reducer& reducer);
  absl::Status Broadcast(int64_t root, int64_t count, VectorView data);
  absl::Status AllGather(const Blocks& blocks, VectorView all);
  absl::Status ReduceScatter(const Blocks& blocks, ConstVectorView input,
                             VectorView own, const Reducer& reducer);

 private:
  // The blocks in BlockOrder: the offset of each rank's block, and the number
  // of elements that a rank stands for (a leader stands for its group).
  struct Layout {
    RankList order;
    std::vector<int64_t> offset;
    std::vector<int64_t> count;
    bool in_order = true;  // `order` is the order of ranks.

    int64_t Start(const RankList& list) const;
    int64_t Total(const RankList& list) const;
    Blocks BlocksOf(const RankList& list) const;
    // The same with leaders standing for their groups.
    Layout OfLeaders(const Layer& layer) const;
  };
  Layout LayoutOf(const Blocks& blocks) const;

  // A RankGroup of the ranks of `list`, which contains this rank.
  absl::StatusOr<RankGroup> Among(const RankList& list, std::string_view what);
  absl::StatusOr<VectorView> Take(int64_t count, int64_t element);
  // All ranks, `root` first. Lists derived from it keep it first.
  RankList RootFirst(int64_t root) const;

  absl::Status AllReduceAt(const RankList& list, int64_t level, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer);
  absl::Status AllReduceByLeaders(const Layer& layer, int64_t level,
                                  int64_t count, ConstVectorView input,
                                  VectorView output, const Reducer& reducer);
  // The first rank of the list is the root. `output` is memory for partial
  // results, or null.
  absl::Status ReduceAt(const RankList& list, int64_t level, int64_t count,
                        ConstVectorView input, VectorView output,
                        const Reducer& reducer);
  absl::Status BroadcastAt(const RankList& list, int64_t level, int64_t count,
                           VectorView data);
  absl::Status AllGatherAt(const RankList& list, int64_t level,
                           const Layout& layout, VectorView all);
  absl::Status AllGatherByLeaders(const Layer& layer, const RankList& list,
                                  int64_t level, const Layout& layout,
                                  VectorView all);
  // `input` begins with the first block of the list.
  absl::Status ReduceScatterAt(const RankList& list, int64_t level,
                               const Layout& layout, ConstVectorView input,
                               VectorView own, const Reducer& reducer);
  absl::Status ReduceScatterByLeaders(const Layer& layer, const RankList& list,
                                      int64_t level, const Layout& layout,
                                      ConstVectorView input, VectorView own,
                                      const Reducer& reducer);

  RankGroup group_;
  const Hierarchy& hierarchy_;
  int64_t chunk_;
  RankList everybody_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_LAYERED_H_
