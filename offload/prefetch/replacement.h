// BlockUse: one use of a block in a step, as planning sees it.
//
//   std::vector<BlockUse> order = {
//       {.key = "layer.0", .bytes = 1 << 20, .compute_ns = 300'000},
//       {.key = "layer.1", .bytes = 1 << 20, .compute_ns = 300'000},
//       {.key = "layer.1", .bytes = 1 << 20, .compute_ns = 600'000,
//        .dirty = true}};
#ifndef TESSERA_OFFLOAD_PREFETCH_REPLACEMENT_H_
#define TESSERA_OFFLOAD_PREFETCH_REPLACEMENT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::offload {

struct BlockUse {
  std::string key;
  int64_t bytes = 0;       // at least 0, the same at every use of the key
  int64_t compute_ns = 0;  // from having this block to asking for the next one
  bool dirty = false;      // changed by this use: stored before it is evicted
  int64_t held = 0;        // stays in use through so many uses that follow
  // The block is overwritten as a whole: it needs memory, but no load.
  bool overwrite = false;
  friend bool operator==(const BlockUse&, const BlockUse&) = default;
};

// A block that is in the near memory when a step begins.
struct NearBlock {
  std::string key;
  int64_t bytes = 0;
  bool dirty = false;
  friend bool operator==(const NearBlock&, const NearBlock&) = default;
};

// Replacement: which blocks to load and evict if the order of uses is known.
//
//   TESSERA_ASSIGN_OR_RETURN(Replacement r,
//                            Replacement::Create(order, 2 << 30, {}));
//   r.bytes_loaded();
//
// A block that is missing at its use evicts the blocks with the farthest next
// use until it fits, but never one in use. The order is assumed to repeat, so
// of the blocks not used again the one that the next step needs last is evicted
// first. Decisions depend only on the order, not on time.
//
// A block whose next use overwrites it counts as never used again, except that
// its bytes are stored if they are dirty.
//
// With blocks of one size and `spare` = 0 no other choice loads fewer bytes,
// over the whole order and over each of its prefixes. With several sizes the
// problem is NP-hard and this is a heuristic; StepBound (prefetch_plan.h)
// bounds its distance from the optimum.
//
// The farthest next use is often that of the block just used, as in any order
// that cycles through more blocks than fit; then no load can start before the
// previous use is over, and nothing overlaps. `spare` = d avoids this: a block
// used within the last d uses is evicted only if there is no other, so that
// memory for a load is free d uses early, for a few more bytes to load.
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
    // Not before the compute of this use has ended; -1: from the start.
    int64_t after = -1;
    // The use that made it dirty, after which it is stored; -1: dirty since
    // before the step. Valid only if `store`.
    int64_t stored_after = -1;
    bool store = false;
  };

  struct Step {
    size_t block = 0;
    bool load = false;  // missing at this use, and not overwritten by it
    // Before that load starts, or the overwriting use of a missing block.
    std::vector<Eviction> evict;
  };

  // O(n log n) for n uses, times the blocks in use at once. InvalidArgument for
  // negative numbers, a key with two sizes or twice in `near`, or `near` above
  // the budget; ResourceExhausted, naming the use, if a block or the blocks in
  // use at once exceed the budget.
  static absl::StatusOr<Replacement> Create(std::span<const BlockUse> order,
                                            int64_t budget,
                                            std::span<const NearBlock> near,
                                            int64_t spare = 0);

  const std::vector<Block>& blocks() const { return blocks_; }
  // One for each use, in order.
  const std::vector<Step>& steps() const { return steps_; }
  // The blocks that are near at the end.
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
