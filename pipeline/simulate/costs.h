// Costs: what the actions of a schedule take, of time and memory.
//
//   Costs costs = Costs::Uniform(4, {.forward = 1, .backward_input = 1,
//                                    .backward_weight = 1, .communication =
//                                    0});
//
// Times are seconds, or any unit: results are in the same. Memory is bytes.
#ifndef TESSERA_PIPELINE_SIMULATE_COSTS_H_
#define TESSERA_PIPELINE_SIMULATE_COSTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "pipeline/schedule/action.h"

namespace tessera::pipeline {

// Of a micro-batch in a stage.
struct StageCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  // From the end of a computation until its result is at another rank: the
  // latency and the time on the wire. None between stages of one rank.
  double communication = 0;

  // What an action adds to the rank's memory when it begins (more than 0) or
  // gives back when it ends (less). A whole backward does both of its parts.
  int64_t forward_bytes = 1;
  int64_t backward_input_bytes = 0;
  int64_t backward_weight_bytes = -1;

  // The time of a computation; 0 for what is none.
  double TimeOf(ActionKind kind) const;
  // What it adds or gives back; 0 for what is no computation.
  int64_t BytesOf(ActionKind kind) const;
};

struct Costs {
  std::vector<StageCosts> stages;

  // The same for all stages.
  static Costs Uniform(int64_t stages, const StageCosts& costs);
};

// InvalidArgument where there are not as many as `stages`, or a time is
// negative or not finite.
absl::Status CheckCosts(const Costs& costs, int64_t stages);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_COSTS_H_
