// Blocks: the split of a buffer into one contiguous block per rank.
//
//   Blocks even = Blocks::Even(4, 100);        // 4 blocks of 100
//   Blocks uneven = Blocks::Of({3, 0, 5});     // offsets 0, 3, 3
//   Blocks slices = Blocks::Balanced(4, 10);   // 3, 3, 2, 2
#ifndef TESSERA_COLLECTIVES_OPERATION_BLOCKS_H_
#define TESSERA_COLLECTIVES_OPERATION_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::collectives {

class Blocks {
 public:
  // Each of `ranks` blocks has `count` elements.
  static Blocks Even(int64_t ranks, int64_t count) {
    return Blocks(ranks, count, 0);
  }
  // `total` elements, split so that block sizes differ by at most one.
  static Blocks Balanced(int64_t ranks, int64_t total) {
    return Blocks(ranks, total / ranks, total % ranks);
  }
  // Block i has counts[i] elements.
  static Blocks Of(std::span<const int64_t> counts) {
    Blocks blocks(static_cast<int64_t>(counts.size()), 0, 0);
    blocks.offsets_.reserve(counts.size() + 1);
    blocks.offsets_.push_back(0);
    for (int64_t count : counts) {
      blocks.offsets_.push_back(blocks.offsets_.back() + count);
    }
    return blocks;
  }

  int64_t ranks() const { return ranks_; }
  int64_t total() const { return offset(ranks_); }

  // The first element of block `i`; total() for i == ranks().
  int64_t offset(int64_t i) const {
    if (!offsets_.empty()) return offsets_[static_cast<size_t>(i)];
    return i * quotient_ + std::min(i, remainder_);
  }
  int64_t count(int64_t i) const { return offset(i + 1) - offset(i); }

  int64_t largest() const {
    int64_t largest = 0;
    for (int64_t i = 0; i < ranks_; ++i) largest = std::max(largest, count(i));
    return largest;
  }

 private:
  Blocks(int64_t ranks, int64_t quotient, int64_t remainder)
      : ranks_(ranks), quotient_(quotient), remainder_(remainder) {}

  int64_t ranks_;
  int64_t quotient_;
  int64_t remainder_;  // Number of leading blocks with one extra element.
  std::vector<int64_t> offsets_;  // Only for blocks created by Of.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPERATION_BLOCKS_H_
