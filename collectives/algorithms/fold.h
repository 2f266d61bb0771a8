// Fold: any number of ranks brought to a power of two, for algorithms that
// double.
//
//   const Fold fold(6);       // 4 virtual ranks; 1 folds into 0, 3 into 2
//   fold.FoldsIn(3);          // true: rank 3 hands its data to rank 2 ...
//   fold.VirtualOf(2);        // ... which takes part as virtual rank 1
//   fold.RankOf(3);           // 5
//
// Of the first 2 * extra ranks every odd one folds into the even one before it.
// So each virtual rank stands for adjacent ranks, and rank 0 is virtual rank 0.
// Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective
// Communication Operations in MPICH", IJHPCA 19(1), 2005, section 4.3.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_FOLD_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_FOLD_H_

#include <cstdint>
#include <vector>

#include "collectives/algorithms/chunks.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

class Fold {
 public:
  explicit constexpr Fold(int64_t ranks)
      : power_(int64_t{1} << FloorLog2(ranks)), extra_(ranks - power_) {}

  constexpr int64_t power() const { return power_; }  // Virtual ranks.
  constexpr int64_t extra() const { return extra_; }  // Ranks that fold in.

  // Whether `rank` is one of a pair, and whether it is the one that hands over.
  constexpr bool Paired(int64_t rank) const { return rank < 2 * extra_; }
  constexpr bool FoldsIn(int64_t rank) const {
    return Paired(rank) && rank % 2 == 1;
  }
  static constexpr int64_t Partner(int64_t rank) { return rank ^ 1; }

  constexpr int64_t VirtualOf(int64_t rank) const {
    return Paired(rank) ? rank / 2 : rank - extra_;
  }
  // The rank that acts for a virtual rank.
  constexpr int64_t RankOf(int64_t number) const {
    return number < extra_ ? 2 * number : number + extra_;
  }

  // The blocks of virtual ranks, given those of ranks.
  Blocks Merge(const Blocks& blocks) const {
    if (extra_ == 0) return blocks;
    std::vector<int64_t> counts(static_cast<size_t>(power_));
    for (int64_t rank = 0; rank < blocks.ranks(); ++rank) {
      counts[static_cast<size_t>(VirtualOf(rank))] += blocks.count(rank);
    }
    return Blocks::Of(counts);
  }

 private:
  int64_t power_;
  int64_t extra_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_FOLD_H_
