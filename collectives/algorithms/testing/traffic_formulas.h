// BytesOnWire: the formulas of docs/collective_algorithms.md for the bytes that
// an algorithm sends, for tests and benchmarks of the algorithms.
//
//   BytesOnWire({Algorithm::kRing, OpKind::kAllReduce, 64 << 20, 8});
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_TESTING_TRAFFIC_FORMULAS_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_TESTING_TRAFFIC_FORMULAS_H_

#include <cstdint>

#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct TrafficQuestion {
  Algorithm algorithm = Algorithm::kRing;
  OpKind kind = OpKind::kAllReduce;
  int64_t bytes = 0;  // Size of the whole message (MessageCount).
  int64_t ranks = 1;
};

// The largest number of bytes that one rank sends. Exact if the number of ranks
// (for trees also 2) divides the message and the root is rank 0. The algorithm
// must support the operation; not for kHierarchical.
int64_t BytesOnWire(const TrafficQuestion& question);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_TESTING_TRAFFIC_FORMULAS_H_
