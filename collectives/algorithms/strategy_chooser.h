// StrategyChooser: one algorithm family wherever it has a form of the
// operation.
//
//   StrategyChooser chooser(topology::CommunicationStrategy::kRing);
//   chooser.Choose({.kind = OpKind::kAllReduce, ...});   // Algorithm::kRing
//   chooser.Choose({.kind = OpKind::kBarrier, ...});     // there is no ring of
//                                                        // it: the default
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_STRATEGY_CHOOSER_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_STRATEGY_CHOOSER_H_

#include <string>

#include "collectives/algorithms/algorithm_chooser.h"
#include "topology/config/strategies.h"

namespace tessera::collectives {

// What is taken where nothing better is known: the engine's own if it has one,
// else recursive doubling (all_reduce, barrier; all_gather of few bytes), a
// ring (large all_reduce, all_gather, reduce_scatter), a tree (rooted kinds) or
// pairwise exchange (all_to_all).
Algorithm DefaultAlgorithm(const ChoiceQuestion& question);

// The strategies other than adaptive. kAdaptive, which needs measured costs,
// takes the default here (see //collectives/adaptive).
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

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_STRATEGY_CHOOSER_H_
