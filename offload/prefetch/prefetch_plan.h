// PrefetchPlan: predicts the times of a step whose blocks must be loaded; and a
// lower bound on any such step (StepBound).
//
//   TESSERA_ASSIGN_OR_RETURN(int64_t bound_ns,
//                            StepBound(order, budget, {}, 2'000'000'000));
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
// compute of k starts, and the bound is the largest of these over k.
// - Blocks of one size: L(k) is the number of bytes that Replacement loads up
//   to k, which is minimal.
// - Several sizes: L(k) is at least the bytes of all different blocks up to k
//   that were not near at the start, and for any j < k at least L(j) plus the
//   bytes of the different blocks used in j..k minus the budget, since at most
//   the budget was near when the compute of j began.
// These sums omit a block whose first use (from the start, or after j)
// overwrites it, since that use needs no load.
#ifndef TESSERA_OFFLOAD_PREFETCH_PREFETCH_PLAN_H_
#define TESSERA_OFFLOAD_PREFETCH_PREFETCH_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/prefetch/replacement.h"

namespace tessera::offload {

// L(k) for every use k. Errors as for Replacement::Create. For several sizes
// O(n * min(n, 2048)).
absl::StatusOr<std::vector<int64_t>> LeastBytesLoaded(
    std::span<const BlockUse> order, int64_t budget,
    std::span<const NearBlock> near);

// The bound in nanoseconds; 0 for no uses. InvalidArgument if
// `load_bytes_per_second` is not positive.
absl::StatusOr<int64_t> StepBound(std::span<const BlockUse> order,
                                  int64_t budget,
                                  std::span<const NearBlock> near,
                                  int64_t load_bytes_per_second);

// The time in nanoseconds to transfer `bytes`, rounded up. `bytes_per_second`
// must be positive.
int64_t TransferNs(int64_t bytes, int64_t bytes_per_second);

// The predicted times of a step.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       PrefetchPlan plan,
//       PrefetchPlan::Create({.order = order,
//                             .budget = 2LL << 30,
//                             .load_bytes_per_second = 3'000'000'000,
//                             .store_bytes_per_second = 2'000'000'000}));
//   double share = double(plan.bound_ns()) / double(plan.step_ns());
//
// A Replacement determines loads and evictions. Loads run in the order of use;
// each starts as soon as the channel and its memory are free. A victim is
// evicted after its last use, a dirty one after its store, which starts as soon
// as the use that changed it ends. The plan simulates replacements that spare
// 0, 1, 2, 3, 4, 6, 8, ... 64 uses and selects the one that ends first, or
// among equals the one that loads less.
//
// The replacement that spares 0 is the algorithm "conservative" of Cao, Felten,
// Karlin and Li, "A Study of Integrated Prefetching and Caching Strategies",
// SIGMETRICS 1995: with blocks of one size and without stores it takes at most
// twice the shortest time, and so does the plan. The single parameter that
// trades loads for overlap follows Delay(d) in Albers and Buettner, "Integrated
// prefetching and caching in single and parallel disk systems", 2005.
//
// Pure integer arithmetic, deterministic. The model is that of StepBound, with
// a second, concurrent channel for stores.

class PrefetchPlan {
 public:
  struct Input {
    std::vector<BlockUse> order;
    int64_t budget = 0;  // bytes of near memory
    int64_t load_bytes_per_second = 0;
    int64_t store_bytes_per_second = 0;
    std::vector<NearBlock> near = {};  // at the start
    // Excludes replacements that spare less, so that several loads can be in
    // flight if latency matters, which this model ignores.
    int64_t least_spare = 0;
  };

  // Nanoseconds since the start of the step.
  struct Span {
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    friend bool operator==(const Span&, const Span&) = default;
  };
  // A transfer of the block of `use`: a load before the use, or a store after
  // it. For a store, `use` is -1 if the block was dirty before the step.
  struct Transfer {
    int64_t use = 0;
    size_t block = 0;
    Span time;
  };

  // InvalidArgument if a bandwidth is not positive or the times exceed 63 bits
  // of nanoseconds; otherwise errors as for Replacement::Create.
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
