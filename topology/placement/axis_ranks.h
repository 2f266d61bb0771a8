// AxisRanks: arithmetic of the groups of an axis, given its size and stride.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_AXIS_RANKS_H_
#define TESSERA_TOPOLOGY_PLACEMENT_AXIS_RANKS_H_

#include <algorithm>
#include <cstdint>

namespace tessera::topology {

// Groups of `size` ranks that lie `stride` apart. A block of size * stride
// consecutive ranks holds `stride` whole groups.
class AxisRanks {
 public:
  AxisRanks(int64_t size, int64_t stride) : size_(size), stride_(stride) {}

  int64_t size() const { return size_; }
  int64_t stride() const { return stride_; }
  int64_t block() const { return size_ * stride_; }

  int64_t Coordinate(int64_t rank) const { return rank / stride_ % size_; }
  bool IsLast(int64_t rank) const { return Coordinate(rank) == size_ - 1; }
  bool IsFirst(int64_t rank) const { return Coordinate(rank) == 0; }
  // The group's first rank.
  int64_t Base(int64_t rank) const { return rank - Coordinate(rank) * stride_; }
  // Neighbours on the group's ring.
  int64_t Next(int64_t rank) const {
    return IsLast(rank) ? Base(rank) : rank + stride_;
  }
  int64_t Previous(int64_t rank) const {
    return IsFirst(rank) ? rank + (size_ - 1) * stride_ : rank - stride_;
  }
  // How many ranks of this rank's group lie in [first, end).
  int64_t MembersIn(int64_t rank, int64_t first, int64_t end) const {
    const int64_t base = Base(rank);
    const int64_t low = std::max<int64_t>(CeilDivide(first - base), 0);
    const int64_t high = std::min(CeilDivide(end - base), size_);
    return std::max<int64_t>(high - low, 0);
  }

 private:
  // Of a by the stride, rounded up; 0 for every negative a.
  int64_t CeilDivide(int64_t a) const {
    return a <= 0 ? 0 : (a - 1) / stride_ + 1;
  }

  int64_t size_;
  int64_t stride_;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_AXIS_RANKS_H_
