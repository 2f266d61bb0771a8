// For tests: finds the best schedule by exhaustive search. It shares only the
// rules with the synthesiser.
//
//   const Oracle best = BestOfAll(map, 2, costs, /*memory_limit=*/0);
#ifndef TESSERA_PIPELINE_SYNTHESIZE_TESTING_ORACLE_H_
#define TESSERA_PIPELINE_SYNTHESIZE_TESTING_ORACLE_H_

#include <cstdint>
#include <limits>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline {

// Infinite if no schedule is within the limit.
struct Oracle {
  double longest_stage = std::numeric_limits<double>::infinity();
  double makespan = std::numeric_limits<double>::infinity();
  int64_t schedules = 0;  // Number of schedules tried.
};

// Tries every order of F, I and W on every rank. `in_turn`: only orders in
// which each kind of action of a stage processes the micro-batches in order.
// Feasible for a handful of actions per rank.
Oracle BestOfAll(const StageMap& map, int32_t microbatches, const Costs& costs,
                 int64_t memory_limit, bool in_turn);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_TESTING_ORACLE_H_
