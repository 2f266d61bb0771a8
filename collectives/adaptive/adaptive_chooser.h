// AdaptiveChooser: the algorithm whose predicted time is the least; the
// engine's own way where nothing else is predicted to save a tenth of its time,
// for as much do two measurements differ.
//
//   AdaptiveChooser chooser(table);
//   chooser.Choose(question);     // Algorithm::kHalvingDoubling
//   chooser.Explain(question);    // the predicted times of all, and of what
//                                 // they are made
//
// create_adaptive.h makes one for a group. All ranks choose alike because their
// tables are the same to the last bit.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_ADAPTIVE_CHOOSER_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_ADAPTIVE_CHOOSER_H_

#include <string>

#include "collectives/adaptive/cost_model.h"
#include "collectives/adaptive/cost_table.h"
#include "collectives/adaptive/decision_memo.h"
#include "collectives/algorithms/algorithm_chooser.h"

namespace tessera::collectives {

class AdaptiveChooser final : public AlgorithmChooser {
 public:
  // `table` is one that CheckCostTable allows. `origin` says where it comes
  // from, for Explain: "measured", "from FILE".
  explicit AdaptiveChooser(CostTable table, std::string origin = "given")
      : model_(std::move(table)), origin_(std::move(origin)) {}

  const CostTable& table() const { return model_.table(); }
  const std::string& origin() const { return origin_; }

  // DefaultAlgorithm where nothing is predicted (a group of one rank, an engine
  // without messages that was not measured).
  Algorithm Choose(const ChoiceQuestion& question) const override;
  std::string Explain(const ChoiceQuestion& question) const override;

 private:
  Algorithm Decide(const ChoiceQuestion& question) const;

  CostModel model_;
  std::string origin_;
  mutable DecisionMemo memo_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_ADAPTIVE_CHOOSER_H_
