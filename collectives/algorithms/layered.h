// Hierarchical algorithms: within each group first, then across groups, so that
// the slow links between groups carry each byte as seldom as can be.
//
// Where groups are equal in size, an all-reduce is a reduce-scatter within, an
// all-reduce across (all places of a group at once, each with its part), an
// all-gather within; groups on slow links then exchange one message's worth per
// group, whatever their size. Where they are not, or the message is small,
// leaders act for their groups. Levels nest: across, the same begins anew.
// Plans are made anew for every operation, in O(ranks * levels).
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_LAYERED_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_LAYERED_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/algorithms/layers.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/reducer.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

class Layered {
 public:
  // `party` is the whole group, `hierarchy` is over its ranks and outlives
  // this. Chunks of `chunk` elements.
  Layered(const Party& party, const Hierarchy& hierarchy, int64_t chunk);

  // As the functions of flat algorithms.
  absl::Status AllReduce(int64_t count, ConstVectorView input,
                         VectorView output, const Reducer& reducer);
  absl::Status Reduce(int64_t root, int64_t count, ConstVectorView input,
                      VectorView output, const Reducer& reducer);
  absl::Status Broadcast(int64_t root, int64_t count, VectorView data);
  absl::Status AllGather(const Blocks& blocks, VectorView all);
  absl::Status ReduceScatter(const Blocks& blocks, ConstVectorView input,
                             VectorView own, const Reducer& reducer);

 private:
  // Blocks in the order of BlockOrder: where each rank's begins, and how many
  // elements a rank acts for (its group's, of a leader).
  struct Layout {
    RankList order;
    std::vector<int64_t> offset;
    std::vector<int64_t> count;
    bool in_order = true;  // As the ranks are.

    int64_t Start(const RankList& list) const;
    int64_t Total(const RankList& list) const;
    Blocks BlocksOf(const RankList& list) const;
    // Groups' leaders act for them.
    Layout OfLeaders(const Layer& layer) const;
  };
  Layout LayoutOf(const Blocks& blocks) const;

  // The ranks of `list`, this one among them, as a party.
  absl::StatusOr<Party> Among(const RankList& list, std::string_view what);
  absl::StatusOr<VectorView> Take(int64_t count, int64_t element);
  // Everybody, `root` first: lists made of it keep it first.
  RankList RootFirst(int64_t root) const;

  absl::Status AllReduceAt(const RankList& list, int64_t level, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer);
  absl::Status AllReduceByLeaders(const Layer& layer, int64_t level,
                                  int64_t count, ConstVectorView input,
                                  VectorView output, const Reducer& reducer);
  // The first of the list is the root; `output` is where a rank may keep
  // partial results, null where it has no place yet.
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

  Party party_;
  const Hierarchy& hierarchy_;
  int64_t chunk_;
  RankList everybody_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_LAYERED_H_
