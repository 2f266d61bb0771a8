// The search for the best order on one map (Search), with its parts: the
// sequential order that needs least memory, and refinement (Refiner).
#ifndef TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_
#define TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/synthesize/evaluator.h"
#include "pipeline/synthesize/greedy.h"
#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

// The order that processes one micro-batch at a time. It needs least memory, on
// any map.
//
// Each micro-batch does its forwards, then for each stage from the last one its
// backward-input and backward-weight. Every order must do all forwards of a
// micro-batch on a rank before the first backward-input, so if only forwards
// add memory, no order needs less.
Order SequentialOrder(const Model& model);

// The peak memory of that order, and the rank that has it.
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
// Simulated annealing: the actions on the critical path determine when the
// longest rank ends. One of them, chosen at random, is moved forward or
// backward within its rank's order; the move is kept if the result is no worse,
// or at a falling temperature only slightly worse. Deterministic for a seed.
class Refiner {
 public:
  // The model must outlive this. Stops when a result reaches `bound`, or on a
  // request to stop.
  Refiner(const Model& model, const Objective& objective, double bound,
          uint64_t seed, std::stop_token stop = {})
      : model_(model),
        objective_(objective),
        bound_(bound),
        stop_(std::move(stop)),
        evaluator_(model),
        random_(seed) {}

  // Replaces `order`, which must be valid, and its evaluation if it finds a
  // better one. Evaluates about `effort` actions.
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
  std::vector<ActionPosition> path_;
};

// The best order so far.
struct Found {
  Order order;
  Evaluation evaluation;
  std::string origin;
};

// Searches the best order on one map by greedy policies and small moves.
//
//   Search search(model, objective, bound, effort, seed);
//   search.Try(OrderOf(model, schedule), "zb_h1");
//   search.Run();
//   search.best().order;
class Search {
 public:
  // The model must outlive it. `bound` is a lower bound of the preferred time.
  // `effort` is the approximate number of actions to place or evaluate; a
  // request to stop ends the search earlier.
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

  // Searches until the effort is spent or the bound is reached.
  void Run();

  // Its evaluation is invalid if nothing fits the memory limit.
  const Found& best() const { return best_; }

 private:
  // True if the best result is provably optimal.
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
  std::vector<Kept> kept_;  // The best policies, best first.
};

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_
