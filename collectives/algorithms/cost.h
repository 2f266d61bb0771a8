// Predicts the time and traffic of collective algorithms in the
// latency-bandwidth-reduction model (the formulas of the README).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       double seconds,
//       PredictSeconds({.algorithm = Algorithm::kRing,
//                       .kind = OpKind::kAllReduce,
//                       .bytes = 64 << 20,
//                       .ranks = 8},
//                      {.alpha_s = 2e-6, .beta_s_per_byte = 1e-10}));
//
// A message of m bytes takes alpha + beta * m seconds, reducing two vectors of
// m bytes gamma * m. A rank sends and receives one message at a time, and
// reduces concurrently (R. W. Hockney, Parallel Computing 20, 1994; Thakur,
// Rabenseifner, Gropp, IJHPCA 19(1), 2005).
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_COST_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_COST_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct LinkCost {
  double alpha_s = 0;           // Latency of a message.
  double beta_s_per_byte = 0;   // Transfer time.
  double gamma_s_per_byte = 0;  // Combining two vectors into one.
};

// One level of a hierarchy of equal groups: the number of ranks (or groups of
// the level below) in each group, and the links between them.
struct LevelCost {
  int64_t groups = 1;
  LinkCost link;
};

struct CostQuestion {
  Algorithm algorithm = Algorithm::kRing;
  OpKind kind = OpKind::kAllReduce;
  int64_t bytes = 0;  // Size of the whole message (MessageCount).
  int64_t ranks = 1;
  int64_t chunk_bytes = kDefaultChunkBytes;
};

// Seconds until the last rank is done; 0 for one rank. kHierarchical counts as
// one level. InvalidArgument if Supports returns false, a number is negative or
// there are no ranks.
absl::StatusOr<double> PredictSeconds(const CostQuestion& question,
                                      const LinkCost& link);

// The same for kHierarchical, innermost level first. The product of the levels'
// `groups` must be the number of ranks; InvalidArgument otherwise.
absl::StatusOr<double> PredictSeconds(const CostQuestion& question,
                                      std::span<const LevelCost> levels);

// The largest number of bytes that one rank sends. Exact if the number of ranks
// (for trees also 2) divides the message and the root is rank 0.
// InvalidArgument as above; Unimplemented for kHierarchical.
absl::StatusOr<int64_t> BytesOnWire(const CostQuestion& question);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_COST_H_
