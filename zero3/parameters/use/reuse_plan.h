// ReusePlan: which gathered parameters to keep between two uses, and which to
// release and gather again.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const ReusePlan plan,
//       PlanReuse(UseOrder::ForwardBackward(model), sizes,
//                 {.max_live = 1'000'000, .max_reuse_distance = 500'000}));
//   for (const ReusePlan::Window& window : plan.windows) {
//     // gather window.gather, compute, release window.release
//   }
//
// After a window each of its parameters is released whose next use in the step
// is too far, or that has none. What is kept gives way, farthest next use
// first, when the next window would exceed the limit. With parameters of one
// size that gathers as few as any plan can: L. Belady, "A study of replacement
// algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966.
// Nothing is live before and after the step, since the optimizer changes every
// value.
#ifndef TESSERA_ZERO3_PARAMETERS_USE_REUSE_PLAN_H_
#define TESSERA_ZERO3_PARAMETERS_USE_REUSE_PLAN_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "zero3/parameters/parameter.h"
#include "zero3/parameters/use/use_order.h"

namespace tessera::zero3 {

// In the unit of the sizes given: elements or bytes.
struct ReuseOptions {
  // Live at any time; a window that is larger by itself is still gathered, with
  // nothing beside it.
  int64_t max_live = std::numeric_limits<int64_t>::max();
  // A parameter is kept only where the windows between two of its uses use at
  // most this much, counting each use.
  int64_t max_reuse_distance = std::numeric_limits<int64_t>::max();
};

struct ReusePlan {
  struct Window {
    // Before the window; in the order of use.
    std::vector<ParameterId> gather;
    // After it, before the next one's gathers; in no special order.
    std::vector<ParameterId> release;
    // Live during it.
    int64_t live = 0;
  };
  std::vector<Window> windows;
  // The most that is live at a time, and what is gathered in all.
  int64_t peak_live = 0;
  int64_t gathered = 0;
};

// In NextUses: the parameter is not used again.
inline constexpr int64_t kNoNextUse = std::numeric_limits<int64_t>::max();

// For each of order.uses(), the window in which the parameter is used next.
std::vector<int64_t> NextUses(const UseOrder& order);

// `sizes` is indexed by id; a parameter of size 0 is taken to be resident and
// never gathered. O(uses * log(uses)). InvalidArgument where an id has no size,
// a size or an option is negative, or all uses together exceed 2^63-1.
absl::StatusOr<ReusePlan> PlanReuse(const UseOrder& order,
                                    std::span<const int64_t> sizes,
                                    const ReuseOptions& options);

// The most that is live at a time by the plan, in another unit. Precondition:
// `sizes` has every id of the plan, and their sum fits.
int64_t PeakLive(const ReusePlan& plan, std::span<const int64_t> sizes);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_USE_REUSE_PLAN_H_
