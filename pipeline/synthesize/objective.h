// Objective: which of two evaluations is the better one.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_OBJECTIVE_H_
#define TESSERA_PIPELINE_SYNTHESIZE_OBJECTIVE_H_

#include <algorithm>
#include <limits>

#include "pipeline/synthesize/evaluator.h"

namespace tessera::pipeline::synthesis {

// A result that is no worse than the best known ones in both of its times comes
// before one that is so in the preferred time, and that before all others.
// Within each, what counts is the preferred time and, to a ten-thousandth, the
// other one.
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
  // The cost, and a fine for what is worse than known: smooth enough to search
  // by.
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

#endif  // TESSERA_PIPELINE_SYNTHESIZE_OBJECTIVE_H_
