// Hierarchy: which ranks are near each other: a partition of the ranks into
// groups (sockets), a coarser one (hosts), and so on.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Hierarchy hierarchy,
//       Hierarchy::FromGroups({{Rank(0), Rank(1)}, {Rank(2), Rank(3)}}));
//
// Levels are numbered from the innermost one, 0. Groups may differ in size.
// cluster_hierarchy.h makes one of a topology::Cluster. Immutable; any thread
// may read it.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_HIERARCHY_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_HIERARCHY_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/rank.h"

namespace tessera::collectives {

class Hierarchy {
 public:
  // The groups of one level, in any order.
  using Groups = std::vector<std::vector<topology::Rank>>;

  // `ranks` ranks, at least 1, all equally near: no levels.
  static absl::StatusOr<Hierarchy> Flat(int64_t ranks);

  // One level. InvalidArgument where a group is empty or a rank is missing,
  // there twice or out of place: the ranks are 0 to their number less one.
  static absl::StatusOr<Hierarchy> FromGroups(const Groups& groups);

  // Innermost first. InvalidArgument as above, and where a group does not lie
  // within a group of the next level.
  static absl::StatusOr<Hierarchy> FromLevels(std::span<const Groups> levels);

  // Innermost first: labels[level][rank]; ranks with the same label are in one
  // group. InvalidArgument as above, and where levels differ in length.
  static absl::StatusOr<Hierarchy> FromLabels(
      std::span<const std::vector<int64_t>> labels);

  int64_t ranks() const { return ranks_; }
  int64_t levels() const { return static_cast<int64_t>(groups_.size()); }

  // The number of the rank's group at a level, numbered by their first ranks.
  int64_t GroupOf(int64_t level, topology::Rank rank) const {
    return groups_[static_cast<size_t>(level)]
                  [static_cast<size_t>(rank.value())];
  }

  // The ranks of the largest group of the outermost level; all of them where
  // there are no levels.
  int64_t LargestGroup() const;

  // The part of it that concerns `members`: rank i of the result is members[i].
  // They are distinct ranks of this one, at least one.
  Hierarchy Restrict(std::span<const topology::Rank> members) const;

  // "8 ranks, in 4 groups of 2, in 2 groups of 4".
  std::string Describe() const;

  friend bool operator==(const Hierarchy&, const Hierarchy&) = default;

 private:
  Hierarchy(int64_t ranks, std::vector<std::vector<int64_t>> groups)
      : ranks_(ranks), groups_(std::move(groups)) {}

  int64_t ranks_;
  std::vector<std::vector<int64_t>> groups_;  // [level][rank]
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_HIERARCHY_H_
