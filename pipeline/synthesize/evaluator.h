// The evaluation of orders in a search: their times (Evaluator), and which of
// two results is better (Objective).
#ifndef TESSERA_PIPELINE_SYNTHESIZE_EVALUATOR_H_
#define TESSERA_PIPELINE_SYNTHESIZE_EVALUATOR_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "pipeline/proof/action_position.h"
#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

struct Evaluation {
  bool valid = false;  // It completes within the memory limit.
  double longest_stage = 0;
  double makespan = 0;
};

// Evaluates an order like Simulate, but faster.
//
//   Evaluator evaluator(model);
//   const Evaluation evaluation = evaluator.Evaluate(order);
//   if (evaluation.valid) use(evaluation.longest_stage);
//   evaluator.CriticalPath(order);           // of the last evaluated order
//
// Reuses its memory between evaluations. Not thread-safe.
class Evaluator {
 public:
  // The model must outlive it.
  explicit Evaluator(const Model& model);

  Evaluation Evaluate(const Order& order);

  // The critical path of the last evaluated order, which must have been valid:
  // a list of actions from the last to the first. Each began when the next one
  // in the list ended (or its message arrived). The list starts with the last
  // action of the rank with the longest stage or, with `of_makespan`, of the
  // rank that ends last.
  std::vector<ActionPosition> CriticalPath(const Order& order,
                                           bool of_makespan) const;

  // When the action began, and when it ended.
  double begin(ActionPosition place) const { return times_of(place).begin; }
  double end(ActionPosition place) const { return times_of(place).end; }

 private:
  struct Times {
    double begin = 0;
    double end = 0;
  };
  struct Turns {
    std::array<int32_t, 3> done{};
  };
  // An action of another rank that a rank waits for.
  struct Awaited {
    int32_t lane = kNoLane;
    Pass pass = Pass::kForward;
    int32_t turn = 0;
  };
  struct RankState {
    size_t next = 0;
    int64_t held = 0;
    double free = 0;
    Awaited awaited;
  };
  // Arrival times of a lane's results, and their sources.
  struct Result {
    double end = -1;
    ActionPosition place;
  };

  const Times& times_of(ActionPosition place) const {
    return times_[static_cast<size_t>(place.rank)]
                 [static_cast<size_t>(place.position)];
  }
  Result& ResultOf(int32_t lane, Pass pass, int32_t turn) {
    return results_[(static_cast<size_t>(lane) * 2 +
                     static_cast<size_t>(pass)) *
                        turns_ +
                    static_cast<size_t>(turn)];
  }
  const Result& ResultOf(int32_t lane, Pass pass, int32_t turn) const {
    return const_cast<Evaluator*>(this)->ResultOf(lane, pass, turn);
  }

  void Reset(const Order& order);
  bool Advance(int32_t rank, const std::vector<Op>& ops);
  bool Begin(int32_t rank, Op op);
  bool Await(RankState& state, int32_t lane, Pass pass, int32_t turn,
             double delay, double& ready);
  void Wake(int32_t lane, Pass pass, int32_t turn);
  ActionPosition CameFrom(
      const Order& order, ActionPosition place,
      const std::vector<std::vector<int32_t>>& turn_at) const;

  const Model& model_;
  size_t turns_;
  std::vector<Result> results_;  // By lane, F or I, and turn.
  std::vector<Turns> lanes_;
  std::vector<RankState> ranks_;
  std::vector<std::vector<Times>> times_;
  std::vector<int32_t> awake_;
};

// Decides which of two evaluations is better. First rank results that are no
// worse than the best known ones in both times, then results that are no worse
// in the preferred time, then all others. Within each class the cost decides:
// the preferred time plus 1e-4 times the other one.
struct Objective {
  double known_longest_stage = std::numeric_limits<double>::infinity();
  double known_makespan = std::numeric_limits<double>::infinity();
  bool prefer_makespan = false;

  static constexpr double kTolerance = 1e-9;

  int Level(const Evaluation& e) const {
    const bool longest =
        e.longest_stage <= known_longest_stage * (1 + kTolerance);
    const bool makespan = e.makespan <= known_makespan * (1 + kTolerance);
    if (longest && makespan) return 0;
    return (prefer_makespan ? makespan : longest) ? 1 : 2;
  }
  double Preferred(const Evaluation& e) const {
    return prefer_makespan ? e.makespan : e.longest_stage;
  }
  double Cost(const Evaluation& e) const {
    constexpr double kOther = 1e-4;
    return Preferred(e) +
           kOther * (prefer_makespan ? e.longest_stage : e.makespan);
  }
  // The cost plus a penalty for results worse than known ones: smooth enough
  // for the search.
  double FinedCost(const Evaluation& e) const {
    constexpr double kFine = 4;
    return Cost(e) +
           kFine * (std::max(0.0, e.longest_stage - known_longest_stage) +
                    std::max(0.0, e.makespan - known_makespan));
  }
  bool Better(const Evaluation& a, const Evaluation& b) const {
    if (a.valid != b.valid) return a.valid;
    if (!a.valid) return false;
    const int level_a = Level(a);
    const int level_b = Level(b);
    return level_a != level_b ? level_a < level_b : Cost(a) < Cost(b);
  }
};

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_EVALUATOR_H_
