// Search for schedules: a sequential start, the greedy policies, and
// refinement.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_
#define TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/synthesize/evaluator.h"
#include "pipeline/synthesize/greedy.h"
#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

// One micro-batch at a time: the order that needs least memory, on any map.
//
// Each micro-batch's forwards, then for each stage from the last its
// backward-input and backward-weight. A rank has to do all its forwards of a
// micro-batch before the first backward-input, so that if no action but a
// forward adds memory no order needs less.
Order SequentialOrder(const Model& model);

// The memory of the rank that needs most for that order.
struct MemoryNeed {
  int64_t rank = 0;
  int64_t bytes = 0;
};
MemoryNeed LeastMemory(const Model& model);

// Improves an order by small moves on its critical path.
//
//   Refiner refiner(model, objective, /*seed=*/1);
//   refiner.Refine(order, evaluation, effort);
//
// Simulated annealing: the last action of the longest rank is late because of
// those on the critical path. One of them, chosen at random, is moved forward
// or backward within its rank's order; the move is kept if the result is no
// worse, or at a falling temperature only slightly worse. Deterministic for a
// seed.
class Refiner {
 public:
  // The model must outlive it. A result at `bound` is not improved further, and
  // none after a request to stop.
  Refiner(const Model& model, const Objective& objective, double bound,
          uint64_t seed, std::stop_token stop = {})
      : model_(model),
        objective_(objective),
        bound_(bound),
        stop_(std::move(stop)),
        evaluator_(model),
        random_(seed) {}

  // Replaces the valid `order`, whose evaluation is given, if it finds a better
  // one. Costs about `effort` evaluations of an action.
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
  const std::stop_token stop_;
  Evaluator evaluator_;
  std::mt19937_64 random_;
  std::vector<Place> path_;
};

// Search: the best order that policies and small moves lead to, on one map.
//
//   Search search(model, objective, bound, options);
//   search.Try(OrderOf(model, schedule), "zb_h1");
//   search.Run();
//   search.best().order;

// The best so far.
struct Found {
  Order order;
  Evaluation evaluation;
  std::string origin;
};

class Search {
 public:
  // The model must outlive it. `bound` is a lower bound of the preferred time.
  // `effort` is about how many actions it may place or evaluate; a request to
  // stop ends it earlier.
  Search(const Model& model, const Objective& objective, double bound,
         int64_t effort, uint64_t seed, std::stop_token stop = {})
      : model_(model),
        objective_(objective),
        bound_(bound),
        effort_(effort),
        left_(effort),
        seed_(seed),
        stop_(std::move(stop)),
        greedy_(model),
        evaluator_(model) {}

  // Considers an order unchanged, and with its backward-weights rearranged.
  void Try(Order order, std::string_view origin);

  // Spends the effort.
  void Run();

  // Not valid if nothing fits the memory limit.
  const Found& best() const { return best_; }

 private:
  // Done, for all that can be known.
  bool AtBound() const;
  Evaluation Consider(Order order, std::string_view origin);
  Evaluation RunPolicy(const Policy& policy, std::string_view origin);
  void Keep(const Evaluation& evaluation, Policy policy,
            std::string_view origin);
  void TryPolicies();
  void VaryPolicies(int64_t until);
  void RefineBest();

  const Model& model_;
  const Objective objective_;
  const double bound_;
  const int64_t effort_;
  int64_t left_;
  const uint64_t seed_;
  const std::stop_token stop_;
  Greedy greedy_;
  Evaluator evaluator_;
  Found best_;
  struct Kept {
    Evaluation evaluation;
    Policy policy;
    std::string origin;
  };
  std::vector<Kept> kept_;  // The best policies, the best first.
};

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_
