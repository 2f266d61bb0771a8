// Schedules of the collective algorithms: which blocks move between which ranks
// in which step. Pure arithmetic, shared by the algorithms and their cost
// formulas.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_SCHEDULE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_SCHEDULE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// For messages of up to this size the number of steps matters more than the
// number of bytes.
inline constexpr int64_t kSmallMessageBytes = 16 << 10;

enum class TreeKind : uint8_t {
  kBinomial,  // Fewest steps; for small messages.
  kDouble,    // Two binary trees, each with half of the message.
  kChain,
};

// The tree that Algorithm::kTree uses for reduce, broadcast and all-reduce:
// kBinomial for small messages or at most 2 ranks, otherwise kDouble.
constexpr TreeKind TreeKindFor(int64_t bytes, int64_t ranks) {
  return bytes <= kSmallMessageBytes || ranks <= 2 ? TreeKind::kBinomial
                                                   : TreeKind::kDouble;
}

// Splits a range of elements into pieces, so that one piece is processed while
// the next is in transit.
//
//   const Chunks chunks(10, 4);   // 4, 4, 2
//
// There is always at least one chunk: an empty range is sent as an empty
// message, so that ranks detect different counts.
class Chunks {
 public:
  // `total` elements in pieces of `size`; size is at least 1.
  constexpr Chunks(int64_t total, int64_t size)
      : total_(total),
        size_(size),
        count_(std::max<int64_t>(1, total / size + (total % size != 0))) {}

  constexpr int64_t count() const { return count_; }
  constexpr int64_t total() const { return total_; }
  constexpr int64_t first(int64_t k) const { return k * size_; }
  constexpr int64_t length(int64_t k) const {
    return std::min(size_, total_ - k * size_);
  }
  // The longest chunk.
  constexpr int64_t longest() const { return std::min(size_, total_); }

 private:
  int64_t total_;
  int64_t size_;
  int64_t count_;
};

// The number of elements of `element_bytes` in a chunk of about `chunk_bytes`.
constexpr int64_t ChunkElements(int64_t chunk_bytes, int64_t element_bytes) {
  return std::max<int64_t>(1, chunk_bytes / element_bytes);
}

// The smallest k with 2^k >= n, for n >= 1.
constexpr int64_t CeilLog2(int64_t n) {
  int64_t k = 0;
  while ((int64_t{1} << k) < n) ++k;
  return k;
}

// The largest k with 2^k <= n, for n >= 1.
constexpr int64_t FloorLog2(int64_t n) {
  int64_t k = 0;
  while (n >> (k + 1) != 0) ++k;
  return k;
}

// Bruck's algorithms: in step k a rank exchanges data with the ranks at
// distance 2^k; CeilLog2(ranks) steps for any number of ranks. Source: Bruck,
// Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", IEEE TPDS 8(11), 1997.

// All-gather: returns the number of blocks that a rank receives in step k. Slot
// j holds the block of rank + j. Before step k a rank has 2^k blocks; in step k
// it receives the first blocks of rank + 2^k.
constexpr int64_t BruckGatherBlocks(int64_t ranks, int64_t k) {
  const int64_t had = int64_t{1} << k;
  return std::min(had, ranks - had);
}

// All-to-all: returns true if slot j (the block for rank + j) moves in step k,
// to the same slot of rank + 2^k.
constexpr bool BruckSlotMoves(int64_t slot, int64_t k) {
  return (slot >> k & 1) != 0;
}

// All-to-all: the number of slots that move in step k.
constexpr int64_t BruckMovingSlots(int64_t ranks, int64_t k) {
  const int64_t period = int64_t{2} << k;
  const int64_t half = int64_t{1} << k;
  return ranks / period * half + std::max<int64_t>(0, ranks % period - half);
}

// Maps any number of ranks to a power of two of virtual ranks, for recursive
// doubling and halving.
//
//   const Fold fold(6);       // 4 virtual ranks; 1 folds into 0, 3 into 2
//   fold.FoldsIn(3);          // true: rank 3 hands its data to rank 2 ...
//   fold.VirtualOf(2);        // ... which takes part as virtual rank 1
//   fold.RankOf(3);           // 5
//
// Among the first 2 * extra ranks every odd rank folds into the even rank
// before it, so each virtual rank stands for adjacent ranks, and rank 0 is
// virtual rank 0. Source: Thakur, Rabenseifner, Gropp, "Optimization of
// Collective Communication Operations in MPICH", IJHPCA 19(1), 2005,
// section 4.3.
class Fold {
 public:
  explicit constexpr Fold(int64_t ranks)
      : power_(int64_t{1} << FloorLog2(ranks)), extra_(ranks - power_) {}

  constexpr int64_t power() const { return power_; }  // Virtual ranks.
  constexpr int64_t extra() const { return extra_; }  // Ranks that fold in.

  // True if `rank` belongs to a pair.
  constexpr bool Paired(int64_t rank) const { return rank < 2 * extra_; }
  // True if `rank` is the rank of a pair that hands its data to the other.
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

  // Converts the blocks of ranks to the blocks of virtual ranks.
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

// The parameters of a RingWalk.
struct RingShape {
  int64_t first_step = 0;  // 0, or ranks - 1 for an all-gather alone.
  int64_t end_step = 0;    // ranks - 1 for a reduce-scatter alone.
  int64_t chunk = 1;       // Elements per chunk, at least 1.
  int64_t depth = 1;       // Chunks per block and window, at least 1.
};

// The block that `rank` receives in `step`; for step first_step - 1 the block
// that it starts with.
constexpr int64_t RingBlock(int64_t ranks, int64_t rank, int64_t step) {
  return (rank + 2 * ranks - 2 - step) % ranks;
}

// The order in which the chunks of a ring algorithm are received from the left
// and sent to the right.
//
//   for (RingWalk walk(blocks, rank, shape); !walk.done(); walk.Next()) {
//     Receive(walk.block(), walk.first(), walk.length());
//   }
//
// A message is split into windows, and each block of a window into up to
// `depth` chunks. For every window the walk visits all steps of the ring, and
// in each step all chunks of one block: while one chunk is reduced, the next
// one is in transit, and the data in flight stays in cache. In step s rank r
// receives block r - 2 - s (modulo n) and sends it on in step s + 1. The first
// n - 1 steps are a reduce-scatter, which ends with the rank's own block; the
// remaining n - 1 steps are an all-gather. Source: Patarasuk, Yuan, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations", JPDC 69(2),
// 2009.
class RingWalk {
 public:
  // `blocks` must outlive this.
  RingWalk(const Blocks& blocks, int64_t rank, const RingShape& shape)
      : blocks_(blocks),
        rank_(rank),
        shape_(shape),
        windows_(WindowsOf(blocks.largest())),
        done_(shape.first_step >= shape.end_step),
        step_(shape.first_step) {
    Load();
    if (!done_ && chunk_ >= chunks_) Advance();
  }

  bool done() const { return done_; }
  int64_t window() const { return window_; }
  int64_t windows() const { return windows_; }
  int64_t step() const { return step_; }
  int64_t chunk() const { return chunk_; }  // Within its window and block.
  int64_t block() const { return block_; }
  // Elements of the block.
  int64_t first() const { return window_ * Span() + chunk_ * shape_.chunk; }
  int64_t length() const {
    return std::min(shape_.chunk, blocks_.count(block_) - first());
  }

  void Next() {
    ++chunk_;
    if (chunk_ >= chunks_) Advance();
  }

  // The number of chunks of `block` in `window`, 0 to depth; an empty block has
  // one empty chunk in window 0.
  int64_t ChunksIn(int64_t window, int64_t block) const {
    const int64_t count = blocks_.count(block);
    if (window == 0 && count == 0) return 1;
    const int64_t left = std::min(Span(), count - window * Span());
    return left <= 0 ? 0 : (left + shape_.chunk - 1) / shape_.chunk;
  }

 private:
  int64_t Span() const { return shape_.chunk * shape_.depth; }
  int64_t WindowsOf(int64_t count) const {
    return std::max<int64_t>(1, (count + Span() - 1) / Span());
  }
  void Load() {
    block_ = RingBlock(blocks_.ranks(), rank_, step_);
    chunks_ = ChunksIn(window_, block_);
    chunk_ = 0;
  }
  void Advance() {
    do {
      if (++step_ == shape_.end_step) {
        step_ = shape_.first_step;
        if (++window_ == windows_) done_ = true;
      }
      if (!done_) Load();
    } while (!done_ && chunks_ == 0);
  }

  const Blocks& blocks_;
  int64_t rank_;
  RingShape shape_;
  int64_t windows_;
  bool done_;
  int64_t window_ = 0;
  int64_t step_;
  int64_t chunk_ = 0;
  int64_t block_ = 0;
  int64_t chunks_ = 0;
};

// A rank's parent, children and depth in a tree. Costs O(log ranks).
//
//   const TreePlace place = RootedDoubleTree(8, rank, 0);
//
// The double binary tree consists of two binary trees over the same ranks such
// that every rank is a leaf in at least one. Each tree moves half of a message,
// so every rank sends and receives it about once, and no bandwidth is wasted on
// leaves that only receive. Source: Sanders, Speck, Traeff, "Two-tree
// algorithms for full bandwidth broadcast, reduction and scan", Parallel
// Computing 35(12), 2009.
struct TreePlace {
  int64_t parent = -1;  // -1 at the root.
  int64_t depth = 0;    // Steps from the root.
  int64_t child_count = 0;
  std::array<int64_t, 62> child = {};

  std::span<const int64_t> children() const {
    return {child.data(), static_cast<size_t>(child_count)};
  }
  void Add(int64_t c) { child[static_cast<size_t>(child_count++)] = c; }
};

// The chain 0 - 1 - ... - (ranks - 1), rooted at 0. Height: ranks - 1.
TreePlace ChainPlace(int64_t ranks, int64_t rank);

// The binomial tree rooted at 0: a rank's parent is the rank without its lowest
// bit; the child with the largest subtree comes first. Height: at most
// CeilLog2(ranks).
TreePlace BinomialPlace(int64_t ranks, int64_t rank);

// Tree `which` (0 or 1) of the double binary tree. Tree 0 is the binary search
// tree over the ranks in which all even ranks are leaves. Tree 1 is its mirror
// image if the number of ranks is even, otherwise the same tree with all ranks
// shifted by one. Height: FloorLog2(ranks).
TreePlace DoubleTreePlace(int64_t ranks, int64_t rank, int which);

// Tree `which` of the double binary tree of all ranks except 0, with rank 0 as
// the common root above both trees. Height: 1 + FloorLog2(ranks - 1).
TreePlace RootedDoubleTree(int64_t ranks, int64_t rank, int which);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_SCHEDULE_H_
