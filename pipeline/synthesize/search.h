// Search: the best order that policies and small moves lead to, on one map.
//
//   Search search(model, objective, bound, options);
//   search.Try(OrderOf(model, schedule), "zb_h1");
//   search.Run();
//   search.best().order;
#ifndef TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_
#define TESSERA_PIPELINE_SYNTHESIZE_SEARCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/synthesize/evaluator.h"
#include "pipeline/synthesize/greedy.h"
#include "pipeline/synthesize/model.h"
#include "pipeline/synthesize/objective.h"
#include "pipeline/synthesize/order.h"

namespace tessera::pipeline::synthesis {

// The best so far.
struct Found {
  Order order;
  Evaluation evaluation;
  std::string origin;
};

class Search {
 public:
  // The model must outlive it. `bound` is a lower bound of the preferred time.
  // `effort` is about how many actions it may place or evaluate.
  Search(const Model& model, const Objective& objective, double bound,
         int64_t effort, uint64_t seed)
      : model_(model),
        objective_(objective),
        bound_(bound),
        effort_(effort),
        left_(effort),
        seed_(seed),
        greedy_(model),
        evaluator_(model) {}

  // Considers an order as it is, and with its backward-weights placed anew.
  void Try(Order order, std::string_view origin);

  // Spends the effort.
  void Run();

  // Not valid where nothing fits the memory limit.
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
