// AdaptiveChooser, which selects the algorithm with the least predicted time,
// and CostModel, which makes the predictions.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_ADAPTIVE_CHOOSER_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_ADAPTIVE_CHOOSER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/adaptive/cost_table.h"
#include "collectives/algorithms/algorithm_chooser.h"

namespace tessera::collectives {

// A prediction and its parts.
struct Prediction {
  Algorithm algorithm = Algorithm::kEngine;
  double seconds = 0;
  double formula = 0;  // 0 for kEngine.
  double factor = 1;
  // True if the algorithm was not measured at about this size because it was
  // far slower than others at smaller sizes; the prediction is then a guess.
  bool left_out = false;
};

// Predicts the time of an operation for each algorithm.
//
//   CostModel model(table);
//   std::optional<Prediction> prediction =
//       model.Predict(Algorithm::kRing, question);
//
// The time of an algorithm is its formula (FormulaSeconds in cost_table.h)
// times a correction factor: measured time divided by formula at a few sizes,
// interpolated on logarithmic scales. The engine's own algorithm has no
// formula; its time is the curve through its measured times.
//
// For a group whose shape was not measured, the formulas use its shape with the
// same factors, and the engine's curve is scaled like the fastest formula.
class CostModel {
 public:
  // `table` must be valid (CheckCostTable).
  explicit CostModel(CostTable table);

  const CostTable& table() const { return table_; }

  // nullopt if the algorithm does not support the operation, or is kEngine and
  // was not measured. `algorithm` must be available for `question`.
  std::optional<Prediction> Predict(Algorithm algorithm,
                                    const ChoiceQuestion& question) const;

  // The predictions of all available algorithms, sorted by time, then in enum
  // order. Algorithms with left_out come last.
  std::vector<Prediction> PredictAll(const ChoiceQuestion& question) const;

 private:
  using What = std::pair<OpKind, Algorithm>;

  bool HasMeasuredShape(const ChoiceQuestion& question) const;
  double FactorOf(Algorithm algorithm, const ChoiceQuestion& question) const;
  bool LeftOut(Algorithm algorithm, const ChoiceQuestion& question) const;
  double ShapeScale(const ChoiceQuestion& question) const;

  CostTable table_;
  std::map<What, std::vector<SizePoint>> factors_;
  std::map<OpKind, std::set<int64_t>>
      sizes_;  // Sizes at which any algorithm was measured.
};

// A cache of decisions.
//
// A training step repeats the same few questions, so a lookup takes no lock and
// a few nanoseconds. Entries are never removed; a full memo ignores new ones.
class DecisionMemo {
 public:
  static constexpr size_t kMaxDecisions = 1024;

  // Thread-safe. Find may miss an entry that another thread has just stored.
  std::optional<Algorithm> Find(const ChoiceQuestion& question) const;
  void Keep(const ChoiceQuestion& question, Algorithm algorithm);

 private:
  struct Decision {
    ChoiceQuestion question;
    Algorithm algorithm;
  };
  // Open addressing with linear probing, at most half full.
  static constexpr size_t kSlots = 2 * kMaxDecisions;

  std::array<std::atomic<const Decision*>, kSlots> slots_ = {};
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Decision>> decisions_;
};

// Chooses the algorithm with the least predicted time. Prefers kEngine unless
// another algorithm is predicted to save at least a tenth of its time, because
// repeated measurements differ by as much.
//
//   AdaptiveChooser chooser(table);
//   chooser.Choose(question);     // Algorithm::kHalvingDoubling
//   chooser.Explain(question);    // all predicted times and their parts
//
// create_adaptive.h creates one for a group. All ranks choose the same
// algorithm because their tables are identical.
class AdaptiveChooser final : public AlgorithmChooser {
 public:
  // `table` must be valid (CheckCostTable). `origin` is the source of the table
  // that Explain reports: "measured", "from FILE".
  explicit AdaptiveChooser(CostTable table, std::string origin = "given")
      : model_(std::move(table)), origin_(std::move(origin)) {}

  const CostTable& table() const { return model_.table(); }
  const std::string& origin() const { return origin_; }

  // DefaultAlgorithm if there is no prediction (a single rank, or an engine
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
