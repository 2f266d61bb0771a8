// RingWalk: the order in which the pieces of a ring algorithm come in from the
// left and go out to the right.
//
//   for (RingWalk walk(blocks, rank, shape); !walk.done(); walk.Next()) {
//     Receive(walk.block(), walk.first(), walk.length());
//   }
//
// A message is cut into windows, a window of a block into up to `depth` chunks.
// Window by window all steps of the ring are walked, and in each step all
// chunks of one block: while one is combined, the next one travels, and what
// is in flight stays in cache. In step s rank r receives block r - 2 - s
// (modulo n) and sends it on in step s + 1: steps 0 to n - 2 are a
// reduce-scatter, which ends with the rank's own block, and steps n - 1 to
// 2n - 3 an all-gather. Source of the algorithm: Patarasuk, Yuan, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations", JPDC 69(2),
// 2009.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_RING_WALK_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_RING_WALK_H_

#include <algorithm>
#include <cstdint>

#include "collectives/operation/blocks.h"

namespace tessera::collectives {

struct RingShape {
  int64_t first_step = 0;  // 0, or ranks - 1 for an all-gather alone.
  int64_t end_step = 0;    // ranks - 1 for a reduce-scatter alone.
  int64_t chunk = 1;       // Elements, at least 1.
  int64_t depth = 1;       // Chunks of a block in a window, at least 1.
};

// The block that `rank` receives in `step`; for step first_step - 1 the one
// that it starts with.
constexpr int64_t RingBlock(int64_t ranks, int64_t rank, int64_t step) {
  return (rank + 2 * ranks - 2 - step) % ranks;
}

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

  // How many chunks of `block` lie in `window`: none, up to depth; one of no
  // elements for an empty block.
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

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_RING_WALK_H_
