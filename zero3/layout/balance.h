// Balance: assigns whole items to ranks so that no rank has much more than
// others.
//
//   BalanceLargestFirst(std::vector<int64_t>{5, 4, 3, 3, 3}, 2);
//   // ranks 0, 1, 1, 0, 1: loads 8 and 10
//
// Longest processing time first: in descending order of weight, each goes to
// the rank with the least load. The largest load is at most 4/3 - 1/(3 ranks)
// times the least possible: R. Graham, "Bounds on multiprocessing timing
// anomalies", SIAM Journal on Applied Mathematics 17, 1969.
#ifndef TESSERA_ZERO3_LAYOUT_BALANCE_H_
#define TESSERA_ZERO3_LAYOUT_BALANCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/rank.h"

namespace tessera::zero3 {

// Returns the rank of each weight. Equal weights are assigned in order; of
// equal loads the lowest rank is taken. O(n log n). InvalidArgument if ranks is
// below 1, a weight is negative, or the sum exceeds 2^63-1.
absl::StatusOr<std::vector<topology::Rank>> BalanceLargestFirst(
    std::span<const int64_t> weights, int64_t ranks);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_LAYOUT_BALANCE_H_
