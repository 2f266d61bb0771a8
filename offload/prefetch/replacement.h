// Replacement: decides which blocks to load and evict if the order of uses
// (BlockUse) is known.
#ifndef TESSERA_OFFLOAD_PREFETCH_REPLACEMENT_H_
#define TESSERA_OFFLOAD_PREFETCH_REPLACEMENT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::offload {

// One use of a block in a step, as planning sees it.
//
//   std::vector<BlockUse> order = {
//       {.key = "layer.0", .bytes = 1 << 20, .compute_ns = 300'000},
//       {.key = "layer.1", .bytes = 1 << 20, .compute_ns = 300'000},
//       {.key = "layer.1", .bytes = 1 << 20, .compute_ns = 600'000,
//        .dirty = true}};
struct BlockUse {
  std::string key;
  int64_t bytes = 0;       // at least 0, the same at every use of the key
  int64_t compute_ns = 0;  // from the arrival of this block to the next request
  bool dirty = false;      // changed by this use; stored before eviction
  int64_t held = 0;  // the number of later uses during which it stays in use
  // The use overwrites the whole block: it needs memory, but no load.
  bool overwrite = false;
  friend bool operator==(const BlockUse&, const BlockUse&) = default;
};

// A block that is in near memory when a step begins.
struct NearBlock {
  std::string key;
  int64_t bytes = 0;
  bool dirty = false;
  friend bool operator==(const NearBlock&, const NearBlock&) = default;
};

// The blocks to load and evict at each use of a known order.
//
//   TESSERA_ASSIGN_OR_RETURN(Replacement r,
//                            Replacement::Create(order, 2 << 30, {}));
//   r.bytes_loaded();
//
// If a block is missing at its use, the blocks with the farthest next use are
// evicted until it fits, but never a block in use. The order is assumed to
// repeat: among blocks not used again, the one that the next step needs last is
// evicted first. Decisions depend only on the order, not on time.
//
// A block whose next use overwrites it counts as never used again, except that
// its bytes are stored if they are dirty.
//
// With blocks of one size and `spare` = 0 no other replacement loads fewer
// bytes, over the whole order or any prefix of it. With several sizes the
// problem is NP-hard and this is a heuristic; StepBound (prefetch_plan.h)
// bounds its distance from the optimum.
//
// In an order that cycles through more blocks than fit, the block just used
// often has the farthest next use; then no load can start before the previous
// use ends, and nothing overlaps. `spare` = d avoids this at the cost of a few
// more bytes to load: a block used within the last d uses is evicted only if
// there is no other, so that memory for a load is free d uses earlier.
//
// Source: L. Belady, "A study of replacement algorithms for a virtual-storage
// computer", 1966.

class Replacement {
 public:
  // A block that appears in the order or is near at the start.
  struct Block {
    std::string key;
    int64_t bytes = 0;
  };

  struct Eviction {
    size_t block = 0;
    // The use whose compute must end before the eviction; -1: none.
    int64_t after = -1;
    // The use that made the block dirty, after which it is stored; -1 if it was
    // dirty before the step. Valid only if `store`.
    int64_t stored_after = -1;
    bool store = false;
  };

  struct Step {
    size_t block = 0;
    bool load = false;  // missing at this use, and not overwritten by it
    // The evictions before that load starts, or before the use that overwrites
    // a missing block.
    std::vector<Eviction> evict;
  };

  // Time: O(n log n) for n uses, times the blocks in use at once.
  // InvalidArgument for negative numbers, a key with two sizes or twice in
  // `near`, or `near` above the budget; ResourceExhausted, naming the use, if a
  // block or the blocks in use at once exceed the budget.
  static absl::StatusOr<Replacement> Create(std::span<const BlockUse> order,
                                            int64_t budget,
                                            std::span<const NearBlock> near,
                                            int64_t spare = 0);

  const std::vector<Block>& blocks() const { return blocks_; }
  // One step for each use, in order.
  const std::vector<Step>& steps() const { return steps_; }
  // The blocks that are near after the last use.
  const std::vector<NearBlock>& left() const { return left_; }

  int64_t loads() const { return loads_; }
  int64_t bytes_loaded() const { return bytes_loaded_; }
  int64_t bytes_stored() const { return bytes_stored_; }

 private:
  class Builder;

  std::vector<Block> blocks_;
  std::vector<Step> steps_;
  std::vector<NearBlock> left_;
  int64_t loads_ = 0;
  int64_t bytes_loaded_ = 0;
  int64_t bytes_stored_ = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_REPLACEMENT_H_
