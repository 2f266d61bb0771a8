#include "pipeline/synthesize/search.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "pipeline/synthesize/policies.h"
#include "pipeline/synthesize/refine.h"

namespace tessera::pipeline::synthesis {
namespace {

// Of an action, in units of evaluating one.
constexpr int64_t kGreedyCost = 4;
constexpr size_t kPoliciesKept = 6;
constexpr int64_t kKeptOfOrigin = 3;
// Even a large pipeline has so many policies tried.
constexpr size_t kFewestPolicies = 4;

}  // namespace

bool Search::AtBound() const {
  const Evaluation& e = best_.evaluation;
  return e.valid && objective_.Level(e) == 0 &&
         objective_.Preferred(e) <= bound_;
}

Evaluation Search::Consider(Order order, std::string_view origin) {
  left_ -= model_.actions;
  const Evaluation evaluation = evaluator_.Evaluate(order);
  if (objective_.Better(evaluation, best_.evaluation)) {
    best_ = {std::move(order), evaluation, std::string(origin)};
  }
  return evaluation;
}

Evaluation Search::RunPolicy(const Policy& policy, std::string_view origin) {
  left_ -= kGreedyCost * model_.actions;
  std::optional<Order> order = greedy_.Run(policy);
  if (!order) return {};
  return Consider(*std::move(order), origin);
}

// Among the best few policies, if it is; but few of an origin, so that there
// are different ones.
void Search::Keep(const Evaluation& evaluation, Policy policy,
                  std::string_view origin) {
  if (!evaluation.valid) return;
  const auto at =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
        return objective_.Better(evaluation, kept.evaluation);
      });
  const auto same = [&](const Kept& kept) { return kept.origin == origin; };
  if (std::count_if(kept_.begin(), at, same) == kKeptOfOrigin) return;
  kept_.insert(at, {evaluation, std::move(policy), std::string(origin)});
  if (std::count_if(kept_.begin(), kept_.end(), same) > kKeptOfOrigin) {
    const auto last = std::find_if(kept_.rbegin(), kept_.rend(), same);
    kept_.erase(std::next(last).base());
  }
  if (kept_.size() > kPoliciesKept) kept_.pop_back();
}

void Search::Try(Order order, std::string_view origin) {
  Consider(order, origin);
  Policy policy(model_);
  policy.script = std::make_shared<const Order>(std::move(order));
  const std::string name = absl::StrCat(origin, ", weights placed anew");
  for (const float gap : {1.0f, 0.0f, 0.5f}) {
    for (RankPolicy& rank : policy.ranks) rank.gap = gap;
    Keep(RunPolicy(policy, name), policy, name);
  }
}

void Search::TryPolicies() {
  size_t tried = 0;
  for (Policy& policy : FirstPolicies(model_)) {
    // Of what reaches the bound the other time counts.
    const int64_t until = AtBound() ? effort_ * 3 / 4 : effort_ / 2;
    if (++tried > kFewestPolicies && left_ < until) return;
    const Evaluation evaluation = RunPolicy(policy, "greedy");
    Keep(evaluation, std::move(policy), "greedy");
  }
}

// Climbs from each of the best policies in turn, until so much effort is left.
void Search::VaryPolicies(int64_t until) {
  std::mt19937_64 random(seed_);
  for (size_t i = 0; !kept_.empty() && left_ > until && !AtBound(); ++i) {
    Kept& kept = kept_[i % kept_.size()];
    Policy varied = Vary(model_, kept.policy, random);
    const Evaluation then =
        RunPolicy(varied, absl::StrCat(kept.origin, ", policies varied"));
    if (!then.valid ||
        objective_.FinedCost(then) > objective_.FinedCost(kept.evaluation)) {
      continue;
    }
    kept.evaluation = then;
    kept.policy = std::move(varied);
  }
}

void Search::RefineBest() {
  if (!best_.evaluation.valid || AtBound()) return;
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) {
    Refiner refiner(model_, objective_, bound_,
                    seed_ + static_cast<uint64_t>(round));
    const double before = objective_.Cost(best_.evaluation);
    refiner.Refine(best_.order, best_.evaluation, left_ / kRounds);
    if (objective_.Cost(best_.evaluation) < before && round == 0) {
      absl::StrAppend(&best_.origin, ", refined");
    }
  }
  left_ = 0;
}

void Search::Run() {
  TryPolicies();
  VaryPolicies(left_ * 2 / 5);
  RefineBest();
}

}  // namespace tessera::pipeline::synthesis
