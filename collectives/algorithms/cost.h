// How long an algorithm takes by the latency-bandwidth-reduction model, as
// arithmetic: the formulas of the README.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       double seconds,
//       PredictSeconds({.algorithm = Algorithm::kRing,
//                       .kind = OpKind::kAllReduce,
//                       .bytes = 64 << 20,
//                       .ranks = 8},
//                      {.alpha_s = 2e-6, .beta_s_per_byte = 1e-10}));
//
// A message of m bytes takes alpha + beta * m, combining m bytes of two vectors
// gamma * m; a rank sends one message and receives one at a time, and combines
// while it does (R. W. Hockney, Parallel Computing 20, 1994; Thakur,
// Rabenseifner, Gropp, IJHPCA 19(1), 2005).
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_COST_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_COST_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "collectives/algorithms/algorithm_options.h"
#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct LinkCost {
  double alpha_s = 0;           // Latency of a message.
  double beta_s_per_byte = 0;   // Transfer.
  double gamma_s_per_byte = 0;  // Combining two vectors into one.
};

// One level of a hierarchy of equal groups: `groups` ranks (or groups of the
// level below) in each, and the links between them.
struct LevelCost {
  int64_t groups = 1;
  LinkCost link;
};

struct CostQuestion {
  Algorithm algorithm = Algorithm::kRing;
  OpKind kind = OpKind::kAllReduce;
  int64_t bytes = 0;  // Of the whole message (MessageCount).
  int64_t ranks = 1;
  int64_t chunk_bytes = kDefaultChunkBytes;
};

// Seconds until the last rank is done, of an algorithm other than
// kHierarchical (which is as kRing, kTree, ... on one level). 0 for one rank.
// InvalidArgument where Supports says no, or a number is negative or there are
// no ranks.
absl::StatusOr<double> PredictSeconds(const CostQuestion& question,
                                      const LinkCost& link);

// The same of kHierarchical, innermost level first; the product of the levels'
// groups is the number of ranks, else InvalidArgument.
absl::StatusOr<double> PredictSeconds(const CostQuestion& question,
                                      std::span<const LevelCost> levels);

// The most bytes that one rank sends, exact where the ranks divide the message
// (and, of trees, 2 does) and, of rooted kinds, the root is rank 0.
// InvalidArgument as above; Unimplemented for kHierarchical.
absl::StatusOr<int64_t> BytesOnWire(const CostQuestion& question);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_COST_H_
