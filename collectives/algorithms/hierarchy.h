// Hierarchy: nested groups of nearby ranks, for example sockets within hosts.
//
//   const std::vector<std::vector<int64_t>> hosts = {{0, 0, 1, 1}};
//   TESSERA_ASSIGN_OR_RETURN(Hierarchy hierarchy,
//                            Hierarchy::FromLabels(hosts));
//
// Level 0 is the innermost level. Groups may differ in size.
// groups/host_hierarchy.h creates the hierarchy of the ranks' hosts and
// sockets. Immutable and thread-safe.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_HIERARCHY_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_HIERARCHY_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/rank.h"

namespace tessera::collectives {

class Hierarchy {
 public:
  // A hierarchy of `ranks` >= 1 ranks without levels.
  static absl::StatusOr<Hierarchy> Flat(int64_t ranks);

  // Innermost level first: labels[level][rank]; ranks with equal labels form a
  // group. InvalidArgument if levels differ in length or are not nested.
  static absl::StatusOr<Hierarchy> FromLabels(
      std::span<const std::vector<int64_t>> labels);

  int64_t ranks() const { return ranks_; }
  int64_t levels() const { return static_cast<int64_t>(groups_.size()); }

  // The index of the rank's group at a level; groups are numbered in the order
  // of their first ranks.
  int64_t GroupOf(int64_t level, topology::Rank rank) const {
    return groups_[static_cast<size_t>(level)]
                  [static_cast<size_t>(rank.value())];
  }

  // The size of the largest group of the outermost level; ranks() without
  // levels.
  int64_t LargestGroup() const;

  // The hierarchy restricted to `members`: rank i of the result is members[i].
  // `members` must be distinct and not empty.
  Hierarchy Restrict(std::span<const topology::Rank> members) const;

  friend bool operator==(const Hierarchy&, const Hierarchy&) = default;

 private:
  Hierarchy(int64_t ranks, std::vector<std::vector<int64_t>> groups)
      : ranks_(ranks), groups_(std::move(groups)) {}

  int64_t ranks_;
  std::vector<std::vector<int64_t>> groups_;  // [level][rank]
};

// Ranks in the order in which an algorithm numbers them.
using RankList = std::vector<int64_t>;

// A list of ranks split into the groups of one level of a hierarchy.
struct Layer {
  std::vector<RankList> groups;  // In the order of their first members.
  bool even = true;              // All groups have the same size.
  int64_t group = -1;            // The group of `me` and its index in it;
  int64_t place = -1;            // -1 if `me` is in no group.

  // True if there is a single group or every rank is its own group.
  bool IsTrivial() const {
    return groups.size() <= 1 || (even && groups[0].size() == 1);
  }
  const RankList& mine() const { return groups[static_cast<size_t>(group)]; }

  // The first rank of each group.
  RankList Leaders() const;
  // The ranks at index `place` of every group; requires even groups.
  RankList AtPlace(int64_t place) const;
};

Layer LayerOf(const Hierarchy& hierarchy, int64_t level,
              std::span<const int64_t> list, int64_t me);

// The block order of hierarchical all-gather and reduce-scatter: a permutation
// of `list` in which the ranks that cooperate at any level from `level` on have
// adjacent blocks.
RankList BlockOrder(const Hierarchy& hierarchy, int64_t level,
                    const RankList& list);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_HIERARCHY_H_
