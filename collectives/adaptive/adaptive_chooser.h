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

// DecisionMemo: decisions that were made, by their questions.
//
// A training step asks the same few questions over and over: reading takes some
// nanoseconds and no lock. Entries are never taken out; when it is full, it
// keeps what it has.

class DecisionMemo {
 public:
  static constexpr size_t kMaxDecisions = 1024;

  // Thread-safe, both of them. Find makes no promise after a Keep by another
  // thread: it may still find nothing.
  std::optional<Algorithm> Find(const ChoiceQuestion& question) const;
  void Keep(const ChoiceQuestion& question, Algorithm algorithm);

 private:
  struct Decision {
    ChoiceQuestion question;
    Algorithm algorithm;
  };
  // Open addressing with linear steps, at most half full.
  static constexpr size_t kSlots = 2 * kMaxDecisions;

  std::array<std::atomic<const Decision*>, kSlots> slots_ = {};
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Decision>> decisions_;
};

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
