// SynthesisProblem: what a schedule is to be made for.
//
//   SynthesisProblem problem{.ranks = 8, .microbatches = 24};
//   problem.costs = Costs::Uniform(8, {...});
//   problem.memory_limit = 1'609'728;
#ifndef TESSERA_PIPELINE_SYNTHESIZE_PROBLEM_H_
#define TESSERA_PIPELINE_SYNTHESIZE_PROBLEM_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline {

struct SynthesisProblem {
  int64_t ranks = 1;
  int64_t chunks = 1;  // Stages of a rank.
  int64_t microbatches = 1;
  Costs costs = {};  // Of ranks x chunks stages.
  // Limit of RankTimeline::peak_bytes; 0: no limit.
  int64_t memory_limit = 0;
  // Which rank holds which stage. Where none is given: linear for one chunk,
  // for more the better of loop and zigzag; and a map that holds every stage
  // twice (DualPipe's) only where a generator's schedule on it is better than
  // all that is found on those.
  std::optional<StageMap> map = std::nullopt;
};

// InvalidArgument if a count is less than 1, there are more than 16 Mi
// actions, the costs or the map are not of so many stages or ranks, or the
// limit is negative.
absl::Status CheckProblem(const SynthesisProblem& problem);

// The maps to search on, of a problem that was checked.
absl::StatusOr<std::vector<StageMap>> MapsOf(const SynthesisProblem& problem);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_PROBLEM_H_
