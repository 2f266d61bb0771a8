// A lower bound on the time of a step whose blocks must be loaded.
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
#ifndef TESSERA_OFFLOAD_PREFETCH_PREFETCH_PLAN_H_
#define TESSERA_OFFLOAD_PREFETCH_PREFETCH_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/prefetch/replacement.h"

namespace tessera::offload {

// L(k) for every use k. Errors as Replacement::Create. For several sizes O(n *
// min(n, 2048)).
absl::StatusOr<std::vector<int64_t>> LeastBytesLoaded(
    std::span<const BlockUse> order, int64_t budget,
    std::span<const NearBlock> near);

// The bound in nanoseconds; 0 for no uses. InvalidArgument if
// `load_bytes_per_second` is not positive.
absl::StatusOr<int64_t> StepBound(std::span<const BlockUse> order,
                                  int64_t budget,
                                  std::span<const NearBlock> near,
                                  int64_t load_bytes_per_second);

// Nanoseconds that `bytes` take, rounded up. `bytes_per_second` is positive.
int64_t TransferNs(int64_t bytes, int64_t bytes_per_second);

// PrefetchPlan: the predicted times of a step.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       PrefetchPlan plan,
//       PrefetchPlan::Create({.order = order,
//                             .budget = 2LL << 30,
//                             .load_bytes_per_second = 3'000'000'000,
//                             .store_bytes_per_second = 2'000'000'000}));
//   double share = double(plan.bound_ns()) / double(plan.step_ns());
//
// Loads and evictions form a Replacement. Loads run in the order of need; each
// starts as soon as the channel is free and its room is free. A victim is
// evicted after its last use, a dirty one after its store, which starts as soon
// as the use that changed it ends. Replacements that spare 0, 1, 2, 3, 4, 6, 8,
// ... 64 uses are all priced; the plan is the one that ends first, or among
// equals the one that loads less.
//
// The replacement that spares 0 is the rule "conservative" of Cao, Felten,
// Karlin and Li, "A Study of Integrated Prefetching and Caching Strategies",
// SIGMETRICS 1995: with blocks of one size and without stores it takes at most
// twice the shortest time, and so does the plan. Trading loads for overlap by
// one number is the idea of Delay(d) in Albers and Buettner, "Integrated
// prefetching and caching in single and parallel disk systems", 2005.
//
// Pure integer arithmetic, deterministic. The model is load_bound.h's, with a
// second channel for stores that runs beside the first.

class PrefetchPlan {
 public:
  struct Input {
    std::vector<BlockUse> order;
    int64_t budget = 0;  // bytes of near memory
    int64_t load_bytes_per_second = 0;
    int64_t store_bytes_per_second = 0;
    std::vector<NearBlock> near = {};  // at the start
    // Replacements that spare less are left out, so that more loads than one
    // can be in flight where latency matters, which this model does not know.
    int64_t least_spare = 0;
  };

  // Nanoseconds since the start of the step.
  struct Span {
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    friend bool operator==(const Span&, const Span&) = default;
  };
  // A transfer of the block of `use`. A load is before it; a store is after it,
  // and `use` is -1 if the block was dirty before the step.
  struct Transfer {
    int64_t use = 0;
    size_t block = 0;
    Span time;
  };

  // InvalidArgument if a bandwidth is not positive or the times exceed 63 bits
  // of nanoseconds; else as Replacement::Create.
  static absl::StatusOr<PrefetchPlan> Create(Input input);

  const Input& input() const { return input_; }
  const Replacement& replacement() const { return replacement_; }
  int64_t spare() const { return spare_; }
  const std::vector<Span>& computes() const { return computes_; }  // by use
  const std::vector<Transfer>& loads() const { return loads_; }
  const std::vector<Transfer>& stores() const { return stores_; }

  // The end of the last compute. Stores may take a little longer.
  int64_t step_ns() const;
  int64_t compute_ns() const;
  int64_t stall_ns() const { return step_ns() - compute_ns(); }
  // StepBound of the input.
  int64_t bound_ns() const { return bound_ns_; }

 private:
  class Timeline;

  Input input_;
  Replacement replacement_;
  int64_t spare_ = 0;
  std::vector<Span> computes_;
  std::vector<Transfer> loads_;
  std::vector<Transfer> stores_;
  int64_t bound_ns_ = 0;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PREFETCH_PREFETCH_PLAN_H_
