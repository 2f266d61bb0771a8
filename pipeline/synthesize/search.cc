#include "pipeline/synthesize/search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "pipeline/synthesize/greedy.h"

namespace tessera::pipeline::synthesis {

Order SequentialOrder(const Model& model) {
  Order order(model.ranks());
  const auto add = [&](int32_t lane, Pass pass) {
    order[static_cast<size_t>(model.lane(lane).rank)].push_back({lane, pass});
  };
  const auto lanes = static_cast<int32_t>(model.lanes.size());
  for (int32_t turn = 0; turn < model.most_microbatches; ++turn) {
    for (int32_t first = 0; first < lanes; ++first) {
      if (model.lane(first).before != kNoLane) continue;
      if (turn >= model.lane(first).count) continue;
      int32_t last = first;
      for (int32_t l = first; l != kNoLane; l = model.lane(l).after) {
        add(l, Pass::kForward);
        last = l;
      }
      for (int32_t l = last; l != kNoLane; l = model.lane(l).before) {
        add(l, Pass::kInput);
        add(l, Pass::kWeight);
      }
    }
  }
  return order;
}

MemoryNeed LeastMemory(const Model& model) {
  MemoryNeed most;
  const Order order = SequentialOrder(model);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    int64_t held = 0;
    for (const Op op : order[rank]) {
      const Lane& lane = model.lane(op.lane);
      const int64_t bytes = op.pass == Pass::kForward ? lane.forward_bytes
                            : op.pass == Pass::kInput ? lane.input_bytes
                                                      : lane.weight_bytes;
      held += bytes;
      const int64_t peak = bytes > 0 ? held : held - bytes;
      if (peak > most.bytes) most = {static_cast<int64_t>(rank), peak};
    }
  }
  return most;
}

void Refiner::Apply(Order& order, const Move& move) {
  auto& ops = order[move.rank];
  const auto at = [&](size_t i) {
    return ops.begin() + static_cast<ptrdiff_t>(i);
  };
  if (move.to < move.from) {
    std::rotate(at(move.to), at(move.from), at(move.from + 1));
  } else {
    std::rotate(at(move.from), at(move.from + 1), at(move.to + 1));
  }
}

// Occasionally follows the path of the other time, so that it does not degrade.
void Refiner::Follow(const Order& order) {
  const bool other = Below(8) == 0;
  path_ = evaluator_.CriticalPath(order, objective_.prefer_makespan != other);
}

// Returns false if the chosen action cannot move.
bool Refiner::Propose(const Order& order, Move& move) {
  const ActionPosition place = path_[Below(path_.size())];
  const auto& ops = order[static_cast<size_t>(place.rank)];
  const auto from = static_cast<size_t>(place.position);
  // Usually moves by at most 3 positions, sometimes by up to 24.
  const size_t reach = Below(4) == 0 ? 1 + Below(24) : 1 + Below(3);
  const bool later = Below(ops[from].pass == Pass::kWeight ? 2 : 4) == 0;
  const size_t to = later ? std::min(from + reach, ops.size() - 1)
                          : from - std::min(from, reach);
  if (to == from || ops[to] == ops[from]) return false;
  move = {static_cast<size_t>(place.rank), from, to};
  return true;
}

void Refiner::Refine(Order& order, Evaluation& evaluation, int64_t effort) {
  Evaluation now = evaluator_.Evaluate(order);
  Order current = order;
  Follow(current);
  const int64_t most = effort / std::max<int64_t>(model_.actions, 1);
  // A move changes the time by about one action.
  const double warm = 0.1 * now.longest_stage /
                      static_cast<double>(model_.actions) *
                      static_cast<double>(model_.ranks());
  for (int64_t i = 0; i < most && !path_.empty() && !stop_.stop_requested();
       ++i) {
    Move move;
    if (!Propose(current, move)) continue;
    Apply(current, move);
    const Evaluation then = evaluator_.Evaluate(current);
    const double left = 1 - static_cast<double>(i) / static_cast<double>(most);
    const double allowed = -warm * left * left * std::log(Share() + 1e-300);
    if (!then.valid ||
        objective_.FinedCost(then) > objective_.FinedCost(now) + allowed) {
      Apply(current, {move.rank, move.to, move.from});
      continue;
    }
    now = then;
    Follow(current);
    if (!objective_.Better(now, evaluation)) continue;
    evaluation = now;
    order = current;
    if (objective_.Preferred(evaluation) <= bound_ &&
        objective_.Level(evaluation) == 0) {
      break;
    }
  }
}

namespace {

// The cost of placing an action greedily, in evaluations of an action.
constexpr int64_t kGreedyCost = 4;
constexpr size_t kPoliciesKept = 6;
constexpr int64_t kKeptOfOrigin = 3;
// The minimum number of policies, even for large pipelines.
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

// Keeps the policy if it is among the best few; but only a few per origin, for
// diversity.
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
    // At the bound only the secondary time can improve, with less effort.
    const int64_t until = AtBound() ? effort_ * 3 / 4 : effort_ / 2;
    if (++tried > kFewestPolicies && left_ < until) return;
    if (stop_.stop_requested()) return;
    const Evaluation evaluation = RunPolicy(policy, "greedy");
    Keep(evaluation, std::move(policy), "greedy");
  }
}

// Hill-climbs from each of the best policies in turn, until only that much
// effort is left.
void Search::VaryPolicies(int64_t until) {
  std::mt19937_64 random(seed_);
  for (size_t i = 0;
       !kept_.empty() && left_ > until && !AtBound() && !stop_.stop_requested();
       ++i) {
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
                    seed_ + static_cast<uint64_t>(round), stop_);
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
