// IndexRange and Partition: the parts of a dimension that the ranks of a group
// hold.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_H_

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::tensor_parallel {

// The elements [begin, end) of a dimension.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool contains(int64_t index) const {
    return begin <= index && index < end;
  }

  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

// The indices in both ranges; may be empty.
constexpr IndexRange Intersection(IndexRange a, IndexRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

inline std::ostream& operator<<(std::ostream& os, IndexRange range) {
  return os << "[" << range.begin << ", " << range.end << ")";
}

// The part of a dimension on each rank of a group.
//
//   TESSERA_ASSIGN_OR_RETURN(Partition rows, Partition::Balanced(10, 4));
//   rows.RangeOf(1);              // {3, 6}: 3, 3, 2, 2
//
//   rule         sizes of 10 in 4 parts
//   Balanced     3 3 2 2          at most one apart
//   Blocks(4)    4 4 2 0          whole blocks of 4; only the last one is cut
//
// Parts are in order, do not overlap and cover the dimension exactly. If the
// dimension has fewer elements (or blocks) than parts, the last parts are empty
// ranges within it. A value of three integers.
class Partition {
 public:
  // One empty part.
  Partition() = default;

  // InvalidArgument if `size` is negative or `parts` is below 1; for Blocks
  // also if `block` is below 1.
  static absl::StatusOr<Partition> Balanced(int64_t size, int64_t parts);
  // Distributes whole blocks of `block` elements as Balanced distributes
  // elements. The last block of the dimension may be shorter.
  static absl::StatusOr<Partition> Blocks(int64_t size, int64_t parts,
                                          int64_t block);

  int64_t size() const { return size_; }
  int64_t parts() const { return parts_; }
  int64_t block() const { return block_; }

  // `part` is in [0, parts()).
  IndexRange RangeOf(int64_t part) const;
  int64_t SizeOf(int64_t part) const { return RangeOf(part).size(); }

  // The size of the largest part, which is part 0.
  int64_t largest() const { return SizeOf(0); }

  // Returns true if all parts have the same size.
  bool even() const { return SizeOf(0) == SizeOf(parts_ - 1); }

  // The sizes by part, for collectives with uneven counts.
  std::vector<int64_t> Sizes() const;

  // "10 in 4 parts of 3 3 2 2".
  std::string ToString() const;

  friend bool operator==(const Partition&, const Partition&) = default;

 private:
  Partition(int64_t size, int64_t parts, int64_t block)
      : size_(size), parts_(parts), block_(block) {}

  int64_t FirstBlockOf(int64_t part) const;

  int64_t size_ = 0;
  int64_t parts_ = 1;
  int64_t block_ = 1;
};

std::ostream& operator<<(std::ostream& os, const Partition& partition);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_H_
