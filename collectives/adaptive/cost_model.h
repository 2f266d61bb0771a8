// CostModel: how long an operation takes by each algorithm.
//
//   CostModel model(table);
//   std::optional<double> seconds =
//       model.Predict(Algorithm::kRing, question);
//
// An algorithm's time is its formula of latency, bandwidth and reduction
// (formula.h) times a factor: measured over formula at a
// few sizes, between them interpolated on logarithmic scales. The engine's own
// way, of which no formula is known, is the curve through its measured times.
//
// For a group of another shape than the measured one the formulas take that
// shape and the factors stay; the engine's curve is scaled as the fastest
// formula is.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_COST_MODEL_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_COST_MODEL_H_

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "collectives/adaptive/cost_table.h"
#include "collectives/algorithms/algorithm_chooser.h"

namespace tessera::collectives {

// A prediction and what it was made of.
struct Prediction {
  Algorithm algorithm = Algorithm::kEngine;
  double seconds = 0;
  double formula = 0;  // 0 for the engine's own.
  double factor = 1;
  // Others of the kind were measured about this size, and it was left out there
  // for being far behind at smaller ones: the prediction is a guess.
  bool left_out = false;
};

class CostModel {
 public:
  // `table` is one that CheckCostTable allows.
  explicit CostModel(CostTable table);

  const CostTable& table() const { return table_; }

  // Nothing where the algorithm has no such operation, or it is the engine's
  // own and that was not measured. `algorithm` may be chosen for `question`.
  std::optional<Prediction> Predict(Algorithm algorithm,
                                    const ChoiceQuestion& question) const;

  // Of every algorithm that may be chosen, fastest first, those that were left
  // out last; the lower number first where two are as fast.
  std::vector<Prediction> PredictAll(const ChoiceQuestion& question) const;

 private:
  using What = std::pair<OpKind, Algorithm>;

  bool HasMeasuredShape(const ChoiceQuestion& question) const;
  double FactorOf(Algorithm algorithm, const ChoiceQuestion& question) const;
  bool LeftOut(Algorithm algorithm, const ChoiceQuestion& question) const;
  double ShapeScale(const ChoiceQuestion& question) const;

  CostTable table_;
  std::map<What, std::vector<SizePoint>> factors_;
  std::map<OpKind, std::set<int64_t>> sizes_;  // At which any was measured.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_COST_MODEL_H_
