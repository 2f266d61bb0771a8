// Refine: makes an order better by small moves on its critical path.
//
//   Refiner refiner(model, objective, /*seed=*/1);
//   refiner.Refine(order, evaluation, effort);
//
// Simulated annealing: the last action of the longest rank is late because of
// those on the critical path. One of them, chosen by chance, is moved forward
// over what its rank does before it, or backward; what is no worse, or with a
// falling temperature only little worse, is kept. Deterministic for a seed.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_REFINE_H_
#define TESSERA_PIPELINE_SYNTHESIZE_REFINE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "pipeline/synthesize/evaluator.h"
#include "pipeline/synthesize/model.h"
#include "pipeline/synthesize/objective.h"
#include "pipeline/synthesize/order.h"

namespace tessera::pipeline::synthesis {

class Refiner {
 public:
  // The model must outlive it. A result at `bound` is not improved further.
  Refiner(const Model& model, const Objective& objective, double bound,
          uint64_t seed)
      : model_(model),
        objective_(objective),
        bound_(bound),
        evaluator_(model),
        random_(seed) {}

  // Replaces the valid `order`, whose evaluation is given, where it finds a
  // better one. Spends about `effort` evaluations of an action.
  void Refine(Order& order, Evaluation& evaluation, int64_t effort);

 private:
  struct Move {
    size_t rank = 0;
    size_t from = 0;
    size_t to = 0;
  };

  bool Propose(const Order& order, Move& move);
  static void Apply(Order& order, const Move& move);
  void Follow(const Order& order);
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }
  double Share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  const Model& model_;
  const Objective objective_;
  const double bound_;
  Evaluator evaluator_;
  std::mt19937_64 random_;
  std::vector<Place> path_;
};

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_REFINE_H_
