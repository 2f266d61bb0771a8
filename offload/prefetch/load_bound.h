// A lower bound on the time of a step whose blocks must be loaded: no order of
// loads and evictions is faster.
//
//   const int64_t bound_ns = StepBound(order, budget, {}, 2'000'000'000);
//
// The model: one channel loads `load_bytes_per_second` into a near memory of
// `budget` bytes. A block occupies its bytes from the start of its load until
// it is evicted. The computes of the uses run one after another, each as soon
// as its block is loaded, and no block is evicted while it is in use. Stores
// are free. Then for every use k
//
//   time of the step >= time to load L(k) bytes + compute of k, k+1, ...
//
// where L(k) is a number of bytes that every schedule has loaded when the
// compute of k starts, and the bound is the largest of these over k. L(k) is at
// least the bytes of all different blocks up to k that were not near at the
// start; and for any j < k at least L(j) plus the bytes of the different blocks
// used in j..k minus the budget, since at most the budget was near when the
// compute of j began. These sums omit a block whose first use (from the start,
// or after j) overwrites it, since that use needs no load.
#ifndef TESSERA_OFFLOAD_PREFETCH_LOAD_BOUND_H_
#define TESSERA_OFFLOAD_PREFETCH_LOAD_BOUND_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::offload {

// One use of a block in a step.
struct BlockUse {
  std::string key;
  int64_t bytes = 0;       // the same at every use of the key
  int64_t compute_ns = 0;  // from the arrival of this block to the next request
  // The use overwrites the whole block: it needs memory, but no load.
  bool overwrite = false;
  friend bool operator==(const BlockUse&, const BlockUse&) = default;
};

// A block that is in near memory when a step begins.
struct NearBlock {
  std::string key;
  int64_t bytes = 0;
  friend bool operator==(const NearBlock&, const NearBlock&) = default;
};

// L(k) for every use k. O(n * min(n, 2048)).
std::vector<int64_t> LeastBytesLoaded(std::span<const BlockUse> order,
                                      int64_t budget,
                                      std::span<const NearBlock> near);

// The bound in nanoseconds. `load_bytes_per_second` must be positive.
int64_t StepBound(std::span<const BlockUse> order, int64_t budget,
                  std::span<const NearBlock> near,
                  int64_t load_bytes_per_second);

// The time in nanoseconds to transfer `bytes`, rounded up. `bytes_per_second`
// must be positive.
int64_t TransferNs(int64_t bytes, int64_t bytes_per_second);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_LOAD_BOUND_H_
