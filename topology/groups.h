// Groups: the ranks of a mesh, divided into the groups along a set of axes.
#ifndef TESSERA_TOPOLOGY_GROUPS_H_
#define TESSERA_TOPOLOGY_GROUPS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "topology/rank.h"

namespace tessera::topology {

// One digit of a number in a mixed radix: (offset / stride) % size.
struct Digit {
  int64_t stride = 1;
  int64_t size = 1;

  friend bool operator==(const Digit&, const Digit&) = default;
};

// Some of the digits of a rank's offset in a mesh, whose digits are the
// coordinates. Gather reads the number they spell in an offset, Spread writes a
// number into them. An axis is one digit (several if it was composed from parts
// of other axes), and a set of axes is the union of its axes' digits.
class Digits {
 public:
  Digits() = default;

  // The union of digits that do not overlap, in any order. Neighbours are
  // merged and digits of size 1 dropped: {1,2} and {2,4} become {1,8}.
  explicit Digits(std::span<const Digit> digits);

  // The number of values of the digits: the product of their sizes.
  int64_t count() const { return count_; }

  // The number that the digits spell in `offset`, least stride first.
  int64_t Gather(int64_t offset) const {
    int64_t number = 0;
    int64_t weight = 1;
    for (const Digit& digit : digits_) {
      number += offset / digit.stride % digit.size * weight;
      weight *= digit.size;
    }
    return number;
  }

  // The offset in which the digits spell `number` and all others are 0.
  // Inverse of Gather for 0 <= number < count().
  int64_t Spread(int64_t number) const {
    int64_t offset = 0;
    for (const Digit& digit : digits_) {
      offset += number % digit.size * digit.stride;
      number /= digit.size;
    }
    return offset;
  }

  // Splits the digits into parts of the given sizes, the least significant
  // first; the sizes must multiply to count().
  // InvalidArgument if a cut would fall inside a digit.
  absl::StatusOr<std::vector<Digits>> Split(
      std::span<const int64_t> sizes) const;

  // Ascending by stride, none of size 1, no two that could be merged.
  std::span<const Digit> digits() const { return digits_; }

  friend Digits Union(const Digits& a, const Digits& b);

 private:
  absl::InlinedVector<Digit, 4> digits_;
  int64_t count_ = 1;
};

// The neighbours of a group's first and last rank.
enum class Boundary {
  kOpen,    // none: the last rank has no next one
  kCyclic,  // the other end: a ring
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(Groups tp, mesh.GroupsAlong("tp"));
//   tp.count();                    // how many tensor groups there are
//   tp.GroupOf(Rank(5));           // the number of rank 5's group
//   tp.Members(0);                 // its ranks, ascending
//   tp.Shift(Rank(5), 1, Boundary::kCyclic);  // the next rank of the ring
//
// Two ranks are in one group when they agree in every coordinate outside the
// set: the "masked orthogonal" groups of Megatron-LM's RankGenerator. Groups
// are numbered by their smallest rank and members ascend, so a member's index
// is its coordinate along the set. Everything for one rank is O(axes); nothing
// is tabulated.
class Groups {
 public:
  // How many groups there are, and how many ranks each has.
  int64_t count() const { return outside_.count(); }
  int64_t size() const { return inside_.count(); }

  // The number of the rank's group, from 0 to count() - 1, and the rank's index
  // in it, from 0 to size() - 1. InvalidArgument if the mesh has no such
  // rank.
  absl::StatusOr<int64_t> GroupOf(Rank rank) const;
  absl::StatusOr<int64_t> IndexOf(Rank rank) const;

  // The member of `group` at `index`. InvalidArgument if there is none.
  absl::StatusOr<Rank> RankAt(int64_t group, int64_t index) const;

  // The ranks of one group, ascending. InvalidArgument if there is no such
  // group or rank.
  absl::StatusOr<std::vector<Rank>> Members(int64_t group) const;
  absl::StatusOr<std::vector<Rank>> MembersWith(Rank rank) const;

  // Every group in turn. Takes count() * size() ranks of memory.
  std::vector<std::vector<Rank>> All() const;

  // The rank `steps` further along its group (backward if negative), or nullopt
  // if an open group ends before. InvalidArgument if the mesh has no such rank.
  absl::StatusOr<std::optional<Rank>> Shift(Rank rank, int64_t steps,
                                            Boundary boundary) const;

  // The first (head) and last (tail) rank of the rank's group.
  absl::StatusOr<Rank> Head(Rank rank) const;
  absl::StatusOr<Rank> Tail(Rank rank) const;

 private:
  friend class Mesh;
  Groups(Rank first_rank, Digits inside, Digits outside)
      : first_rank_(first_rank),
        inside_(std::move(inside)),
        outside_(std::move(outside)) {}

  absl::Status CheckRank(Rank rank) const;
  absl::Status CheckGroup(int64_t group) const;
  int64_t OffsetOf(Rank rank) const { return rank - first_rank_; }
  Rank RankOf(int64_t group, int64_t index) const {
    return first_rank_ + (outside_.Spread(group) + inside_.Spread(index));
  }

  Rank first_rank_;
  Digits inside_;
  Digits outside_;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_GROUPS_H_
