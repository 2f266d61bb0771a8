// LowerBound: a proven lower bound on the time of every schedule.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       double bound, LowerBound(map, microbatches, costs, memory_limit));
//   timeline.longest_stage / bound - 1;      // at most this far from optimal
//
// It bounds Timeline::longest_stage, hence the makespan, of every schedule of
// computations on the map whose peak_bytes are within the limit on every rank,
// whatever its order, and even if ranks wait unnecessarily. Proof:
//
// Let b and e be the first begin and the last end of a rank; we bound e - b. An
// unsplit backward counts as an I and a W; in each lane micro-batches are
// processed in order (model.h). R(s) is the least time from the begin of F of
// stage s to the begin of I of the same micro-batch: the way to the last stage
// and back, with messages.
//
// 1. Work. The rank computes one thing at a time: e - b >= its work.
// 2. One micro-batch. e - b >= the least time from its first F on the rank to
//    its last W.
// 3. Ends. Consider a rank with a single stage s (for more stages see below).
//    Before its first I it can only do F: n <= N of them, if N micro-batches
//    fit in memory together. That I begins no sooner than b + R, so the rank
//    idles for at least R - n F. When its last F begins, it has x micro-batches
//    before their I, this one included, and y before their W, as many as fit.
//    Until that micro-batch's I, R later, it can do this F, x - 1 I and
//    x + y - 1 W, and idles for the rest of R. The two intervals do not overlap
//    unless all F come before the first I. In that case the last I and W come
//    after m - 1 F and R, and all I and W come after R.
// 4. Slots. Number micro-batches by their F. When F of k + N begins, at most N
//    of the first k + N are still before the end of their I, so k have
//    ended it, and one of these is the k-th or later. So F of k + N begins no
//    sooner than R + I after F of k. If there is no room for a micro-batch
//    before its W beside N - 1 before their I, its W or another I has ended
//    too, which adds min(F, W). The same argument holds for micro-batches
//    before the end of their W.
// 5. Bytes and time. A micro-batch holds its forward's bytes for R + I, and for
//    W what its I leaves. All of them together do not exceed limit x (e - b).
// 6. Other ranks. Let q be a rank whose first stage s' comes after the rank's
//    own first stage s. All F and I of q happen after b plus the way from s to
//    s'. The last of them is an I, after which come the way back to s, and W.
//    So e - b >= way + (q's first F to last I) + way back + W. The arguments
//    above bound the middle term, with W only if memory forces it.
//
// A rank with several stages does all F of its first stage first and all I of
// it last. For 3 the way ends at the first I, which is that of its last stage,
// and the fractional knapsack over its stages bounds what fits in memory. For
// ranks that micro-batches pass in both directions only 1, 2, 5 and, with the
// work of one direction, 6 apply.
//
// The memory limit is used only on ranks where no amount held is negative. The
// bound is rounded down by a relative 1e-12 for the rounding of sums. Messages
// that wait for each other or block the ranks, and an optimizer, only make
// schedules slower.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_LOWER_BOUND_H_
#define TESSERA_PIPELINE_SYNTHESIZE_LOWER_BOUND_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline {

// Returns the bound in the unit of the costs' times. `memory_limit` is in bytes
// per rank; 0: none. InvalidArgument if the costs do not fit the map
// (CheckCosts), there is no micro-batch, or the limit is negative. Time is
// linear in stages x micro-batches.
absl::StatusOr<double> LowerBound(const StageMap& map, int64_t microbatches,
                                  const Costs& costs, int64_t memory_limit);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_LOWER_BOUND_H_
