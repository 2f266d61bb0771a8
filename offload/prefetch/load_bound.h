// The least time that a step can take when its blocks have to be loaded.
//
//   TESSERA_ASSIGN_OR_RETURN(int64_t bound_ns,
//                            StepBound(order, budget, {}, 2'000'000'000));
//
// The model: one channel brings `load_bytes_per_second` into a near memory of
// `budget` bytes; a block takes its bytes there from the start of its load
// until it is evicted; the computes of the uses run one after another, each
// from when its block is there, and no block leaves while it is in use. Stores
// are free. Then for every use k
//
//   time of the step >= time to load L(k) bytes + compute of k, k+1, ...
//
// where L(k) is a number of bytes that every schedule has loaded when the
// compute of k starts, and the bound is the largest of these over k.
// - Blocks of one size: L(k) is what Replacement loads up to k, the least
//   possible.
// - Several sizes: L(0) and the rest as first loads (each block up to k that
//   was not near), and over any j < k at least the bytes of the different
//   blocks used in j..k less the budget on top of L(j), since no more than the
//   budget was there when the compute of j began.
// A block whose first use (of all, or after j) overwrites it need not be
// loaded for it and is left out of these sums.
#ifndef TESSERA_OFFLOAD_PREFETCH_LOAD_BOUND_H_
#define TESSERA_OFFLOAD_PREFETCH_LOAD_BOUND_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/prefetch/block_use.h"

namespace tessera::offload {

// L(k) for every use k. Refuses what Replacement::Create refuses. For several
// sizes O(n * min(n, 2048)).
absl::StatusOr<std::vector<int64_t>> LeastBytesLoaded(
    std::span<const BlockUse> order, int64_t budget,
    std::span<const NearBlock> near);

// The bound in nanoseconds; 0 for no uses. InvalidArgument where
// `load_bytes_per_second` is not positive.
absl::StatusOr<int64_t> StepBound(std::span<const BlockUse> order,
                                  int64_t budget,
                                  std::span<const NearBlock> near,
                                  int64_t load_bytes_per_second);

// Nanoseconds that `bytes` take, rounded up. `bytes_per_second` is positive.
int64_t TransferNs(int64_t bytes, int64_t bytes_per_second);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_LOAD_BOUND_H_
