// IndexRange, PartitionRule and Partition: the parts of a dimension that the
// ranks of a group hold.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_H_

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
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

// The rule that divides a dimension of any size into any number of parts.
//
// clang-format off
//   rule             text        sizes of 10 in 4 parts
//   Balanced         balanced    3 3 2 2    sizes differ by at most one
//   Blocks(4)        blocks4     4 4 2 0    whole blocks; only the last is cut
//   CeilChunks       ceil        3 3 3 1    chunks of ceil(10 / 4), torch.chunk
//   Uneven(1,4,5,0)  1+4+5+0     1 4 5 0    the given sizes
// clang-format on
struct PartitionRule {
  enum class Kind { kBalanced, kCeilChunks, kUneven };

  static PartitionRule Balanced() { return {}; }
  static PartitionRule Blocks(int64_t block) { return {.block = block}; }
  static PartitionRule CeilChunks() { return {.kind = Kind::kCeilChunks}; }
  static PartitionRule Uneven(std::vector<int64_t> sizes) {
    return {.kind = Kind::kUneven, .sizes = std::move(sizes)};
  }

  // Reads the text form above. InvalidArgument if it is none of these.
  static absl::StatusOr<PartitionRule> Parse(std::string_view text);
  std::string ToString() const;

  Kind kind = Kind::kBalanced;
  int64_t block = 1;                // Of kBalanced.
  std::vector<int64_t> sizes = {};  // Of kUneven.

  friend bool operator==(const PartitionRule&, const PartitionRule&) = default;
};

// The part of a dimension on each rank of a group.
//
//   TESSERA_ASSIGN_OR_RETURN(Partition rows, Partition::Balanced(10, 4));
//   rows.RangeOf(1);              // {3, 6}: 3, 3, 2, 2
//
// Parts are in order, do not overlap and cover the dimension exactly. If the
// dimension has fewer elements (or blocks) than parts, the last parts are empty
// ranges within it. A value of two integers and a rule.
class Partition {
 public:
  // One empty part.
  Partition() = default;

  // InvalidArgument if `size` is negative, `parts` or a block is below 1, or
  // uneven sizes are not one for each part, are negative or do not add up to
  // `size`.
  static absl::StatusOr<Partition> Create(int64_t size, int64_t parts,
                                          PartitionRule rule);
  static absl::StatusOr<Partition> Balanced(int64_t size, int64_t parts) {
    return Create(size, parts, {});
  }
  // Distributes whole blocks of `block` elements as Balanced distributes
  // elements. The last block of the dimension may be shorter.
  static absl::StatusOr<Partition> Blocks(int64_t size, int64_t parts,
                                          int64_t block) {
    return Create(size, parts, PartitionRule::Blocks(block));
  }

  int64_t size() const { return size_; }
  int64_t parts() const { return parts_; }
  const PartitionRule& rule() const { return rule_; }

  // `part` is in [0, parts()).
  IndexRange RangeOf(int64_t part) const {
    return {BeginOf(part), BeginOf(part + 1)};
  }
  int64_t SizeOf(int64_t part) const { return RangeOf(part).size(); }

  // The size of the largest part; without uneven sizes that is part 0.
  int64_t largest() const;

  // Returns true if all parts have the same size.
  bool even() const;

  // The sizes by part, for collectives with uneven counts.
  std::vector<int64_t> Sizes() const;

  // "10 in 4 parts of 3 3 2 2".
  std::string ToString() const;

  friend bool operator==(const Partition&, const Partition&) = default;

 private:
  Partition(int64_t size, int64_t parts, PartitionRule rule)
      : size_(size), parts_(parts), rule_(std::move(rule)) {}

  int64_t BeginOf(int64_t part) const;

  int64_t size_ = 0;
  int64_t parts_ = 1;
  PartitionRule rule_;
};

std::ostream& operator<<(std::ostream& os, const Partition& partition);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_H_
