// Layered: hierarchical algorithms. They run within each group first, then
// across groups, to send as few bytes as possible over the slow links between
// groups.
//
// If all groups have the same size, an all-reduce consists of a reduce-scatter
// within each group, one all-reduce across groups for every position in a
// group, and an all-gather within each group. A group of any size sends the
// bytes of one message over the slow links. If group sizes differ or the
// message is small, leaders act for their groups. The steps across groups
// recursively use the next level. Every operation computes its plan, in
// O(ranks * levels).
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

  // The arguments are those of the functions in ring.h and trees.h.
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
    // The layout in which leaders stand for their groups.
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
