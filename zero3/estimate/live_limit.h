// LiveLimit: how many elements of gathered parameters a rank has room for.
//
//   LiveLimit(layout, {.max_elements = 1'000'000'000,
//                      .budget_bytes = int64_t{2} << 30});
//
// Arithmetic alone, with the same result on every rank.
#ifndef TESSERA_ZERO3_ESTIMATE_LIVE_LIMIT_H_
#define TESSERA_ZERO3_ESTIMATE_LIVE_LIMIT_H_

#include <cstdint>
#include <limits>

#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

struct LiveBudget {
  int64_t max_elements = std::numeric_limits<int64_t>::max();
  // Of device memory for values: what stays there, and what is gathered.
  int64_t budget_bytes = std::numeric_limits<int64_t>::max();
  bool shards_in_tier = false;  // So they do not stay.
};

// max_elements, or fewer where the budget has room for fewer (of the widest
// type gathered) beside the small parameters and shards that stay on the
// device, counted on the rank with the most.
int64_t LiveLimit(const StateLayout& layout, const LiveBudget& budget);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_LIVE_LIMIT_H_
