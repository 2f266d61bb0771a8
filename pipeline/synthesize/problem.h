// SynthesisProblem: the input of Synthesize.
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
  int64_t chunks = 1;  // Stages per rank.
  int64_t microbatches = 1;
  Costs costs = {};  // For ranks x chunks stages.
  // Limit of RankTimeline::peak_bytes; 0: unlimited.
  int64_t memory_limit = 0;
  // The map of stages to ranks. If not given: linear for one chunk, the better
  // of loop and zigzag for more chunks. A map with two copies of every stage
  // (DualPipe's) is used only if a generator's schedule on it is better than
  // all results on those maps.
  std::optional<StageMap> map = std::nullopt;
};

// InvalidArgument if a count is less than 1, there are more than 16 Mi actions,
// the costs or the map have other numbers of stages or ranks, or the limit is
// negative.
absl::Status CheckProblem(const SynthesisProblem& problem);

// The maps to search on, for a problem that has passed CheckProblem.
absl::StatusOr<std::vector<StageMap>> MapsOf(const SynthesisProblem& problem);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_PROBLEM_H_
