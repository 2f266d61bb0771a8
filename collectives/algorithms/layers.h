// Layers: a party parted by one level of a hierarchy.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_LAYERS_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_LAYERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/algorithms/hierarchy.h"

namespace tessera::collectives {

// Ranks by their numbers, in the order in which an algorithm counts them.
using RankList = std::vector<int64_t>;

// The groups that the ranks of a list fall into.
struct Layer {
  std::vector<RankList> groups;  // In the order of their first members.
  bool even = true;              // All of one size.
  int64_t group = -1;            // That of `me`, and its place in it; -1 where
  int64_t place = -1;            // it is in none.

  // Nothing to gain: a single group, or each rank its own.
  bool IsTrivial() const {
    return groups.size() <= 1 || (even && groups[0].size() == 1);
  }
  const RankList& mine() const { return groups[static_cast<size_t>(group)]; }

  // The first rank of each group, and the ranks at one place of even groups.
  RankList Leaders() const;
  RankList AtPlace(int64_t place) const;
};

Layer LayerOf(const Hierarchy& hierarchy, int64_t level,
              std::span<const int64_t> list, int64_t me);

// The order in which hierarchical all-gather and reduce-scatter keep the blocks
// of `list`, such that the ranks that act together at any level have theirs
// next to each other. A permutation of the list; levels from `level` on.
RankList BlockOrder(const Hierarchy& hierarchy, int64_t level,
                    const RankList& list);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_LAYERS_H_
