// AlgorithmChooser, which selects the algorithm of an operation; Supports and
// AlgorithmsFor, which list the available algorithms; and AlgorithmOptions, the
// options of RunAlgorithm.
//
//   StrategyChooser chooser(topology::CommunicationStrategy::kRing);
//   Algorithm ring = chooser.Choose({.kind = OpKind::kAllReduce});
//   // A ring has no barrier: this returns the default algorithm.
//   Algorithm other = chooser.Choose({.kind = OpKind::kBarrier});
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CHOOSER_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CHOOSER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/operation/operation.h"
#include "topology/config/strategies.h"

namespace tessera::collectives {

// Chosen so that a chunk's latency is small compared with its transfer time and
// a few chunks fit into a second-level cache.
inline constexpr int64_t kDefaultChunkBytes = 256 << 10;

// Must be equal on all ranks.
struct AlgorithmOptions {
  // The groups of nearby ranks for hierarchical algorithms; null: all ranks are
  // equally near. Must cover all ranks of the group and outlive the operation.
  const Hierarchy* hierarchy = nullptr;

  // Longer messages are split into chunks of this size, so that reducing and
  // forwarding overlap with receiving. At least 1.
  int64_t chunk_bytes = kDefaultChunkBytes;

  // If true, every reduction folds the inputs from left to right in rank order
  // and rounds once. For every algorithm, size and chunk size the results have
  // the bits of Combine(Combination::Whole(...), inputs).
  bool reproducible = false;
};

// The properties of an operation that are equal on all ranks of its group.
struct ChoiceQuestion {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  int64_t bytes = 0;  // Size of the whole message (MessageCount); 0 for an
                      // uneven all_to_all, where ranks differ.
  int64_t ranks = 1;
  int64_t ranks_per_host = 1;  // The largest number of ranks on one host.
  bool uneven = false;
  bool engine_implements = false;  // kEngine is available.
  bool has_transport = true;  // Algorithms other than kEngine are available.

  friend bool operator==(const ChoiceQuestion&,
                         const ChoiceQuestion&) = default;
};

// All ranks of a group must make the same choice, so implementations use only
// values that are equal on all ranks.
class AlgorithmChooser {
 public:
  virtual ~AlgorithmChooser() = default;

  // Returns an algorithm that supports the operation. Thread-safe.
  virtual Algorithm Choose(const ChoiceQuestion& question) const = 0;

  // Explains the choice in a sentence or a small table.
  virtual std::string Explain(const ChoiceQuestion& question) const = 0;
};

// Returns true if RunAlgorithm supports the operation with this algorithm, on
// any number of ranks and for any count. All other combinations are rejected;
// nothing is substituted silently.
//
//                     all_  re-   reduce_  all_    broad- gath- scat- all_to_
//                     reduce duce scatter  gather  cast   er    ter   all
//   ring                x           x u     x u
//   tree                x     x                      x     x     x           b
//   recursive_doubling  x                   x u                              b
//   halving_doubling    x     x     x u              x
//   hierarchical        x     x     x u     x u      x                       b
//   chain               x     x                      x
//   bruck                                   x u                        x
//   pairwise            x           x u     x u            x     x     x u
//
// x: supported; u: also with uneven blocks; b: barrier. kEngine is not listed:
// the engine decides (Engine::Implements).
bool Supports(Algorithm algorithm, OpKind kind, bool uneven);

// All algorithms that support the operation, in enum order.
std::vector<Algorithm> AlgorithmsFor(OpKind kind, bool uneven);

// The default algorithm: the engine's own if it implements the operation,
// otherwise recursive doubling (all_reduce, barrier; small all_gather), ring
// (large all_reduce, all_gather, reduce_scatter), tree (rooted kinds) or
// pairwise exchange (all_to_all).
Algorithm DefaultAlgorithm(const ChoiceQuestion& question);

// Uses the algorithm of a strategy if it supports the operation, otherwise
// DefaultAlgorithm. kAdaptive needs measured costs (//collectives/adaptive);
// here it uses the default.
class StrategyChooser : public AlgorithmChooser {
 public:
  explicit StrategyChooser(topology::CommunicationStrategy strategy)
      : strategy_(strategy) {}

  Algorithm Choose(const ChoiceQuestion& question) const override;
  std::string Explain(const ChoiceQuestion& question) const override;

 private:
  topology::CommunicationStrategy strategy_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CHOOSER_H_
