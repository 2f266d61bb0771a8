#include "pipeline/synthesize/refine.h"

#include <algorithm>
#include <cmath>

namespace tessera::pipeline::synthesis {

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

// Once in a while the other time's path, so that it does not suffer.
void Refiner::Follow(const Order& order) {
  const bool other = Below(8) == 0;
  path_ = evaluator_.CriticalPath(order, objective_.prefer_makespan != other);
}

// False where the action chosen has nowhere to go.
bool Refiner::Propose(const Order& order, Move& move) {
  const Place place = path_[Below(path_.size())];
  const auto& ops = order[static_cast<size_t>(place.rank)];
  const auto from = static_cast<size_t>(place.at);
  // Mostly to a neighbour, now and then far.
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
  // A move makes or breaks about an action's time.
  const double warm = 0.1 * now.longest_stage /
                      static_cast<double>(model_.actions) *
                      static_cast<double>(model_.ranks());
  for (int64_t i = 0; i < most && !path_.empty(); ++i) {
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

}  // namespace tessera::pipeline::synthesis
