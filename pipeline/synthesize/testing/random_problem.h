// For tests: problems of all kinds, from a seed.
//
//   std::mt19937_64 random(1);
//   const SynthesisProblem problem = RandomProblem(random, {.ranks = 6});
#ifndef TESSERA_PIPELINE_SYNTHESIZE_TESTING_RANDOM_PROBLEM_H_
#define TESSERA_PIPELINE_SYNTHESIZE_TESTING_RANDOM_PROBLEM_H_

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <random>

#include "pipeline/synthesize/problem.h"

namespace tessera::pipeline {

// The largest values.
struct ProblemRange {
  int64_t ranks = 6;
  int64_t chunks = 1;
  int64_t microbatches = 12;
};

// Times and bytes of a stage; some alike, some zero, some far apart.
inline StageCosts RandomCosts(std::mt19937_64& random) {
  const auto time = [&random] {
    const uint64_t kind = random() % 10;
    if (kind == 0) return 0.0;
    return kind < 4 ? 1.0 : 0.25 * static_cast<double>(1 + random() % 12);
  };
  StageCosts costs{.forward = time(),
                   .backward_input = time(),
                   .backward_weight = time(),
                   .communication = 0.125 * static_cast<double>(
                                                random() % 3 * (random() % 8))};
  costs.forward_bytes = 10 * static_cast<int64_t>(1 + random() % 4);
  costs.backward_input_bytes =
      -(costs.forward_bytes * static_cast<int64_t>(random() % 5)) / 4;
  costs.backward_weight_bytes =
      -costs.forward_bytes - costs.backward_input_bytes;
  return costs;
}

// Two of three problems have a limit: from the minimum for one micro-batch to
// many times that.
inline SynthesisProblem RandomProblem(std::mt19937_64& random,
                                      const ProblemRange& range) {
  const auto up_to = [&random](int64_t most) {
    return static_cast<int64_t>(1 + random() % static_cast<uint64_t>(most));
  };
  SynthesisProblem problem{.ranks = up_to(range.ranks),
                           .chunks = up_to(range.chunks),
                           .microbatches = up_to(range.microbatches)};
  const bool alike = random() % 4 == 0;
  const StageCosts same = RandomCosts(random);
  int64_t largest = 0;
  for (int64_t s = 0; s < problem.ranks * problem.chunks; ++s) {
    problem.costs.stages.push_back(alike ? same : RandomCosts(random));
    largest = std::max(largest, problem.costs.stages.back().forward_bytes);
  }
  if (random() % 3 != 0) {
    problem.memory_limit =
        largest * problem.chunks * up_to(2 * problem.ranks + 1) +
        static_cast<int64_t>(random() % 10);
  }
  return problem;
}

inline std::ostream& operator<<(std::ostream& os,
                                const SynthesisProblem& problem) {
  os << problem.ranks << " ranks, " << problem.chunks << " chunks, "
     << problem.microbatches << " micro-batches, " << problem.memory_limit
     << " bytes;";
  for (const StageCosts& costs : problem.costs.stages) {
    os << " {" << costs.forward << ", " << costs.backward_input << ", "
       << costs.backward_weight << ", " << costs.communication << ", "
       << costs.forward_bytes << ", " << costs.backward_input_bytes << ", "
       << costs.backward_weight_bytes << "}";
  }
  return os;
}

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_TESTING_RANDOM_PROBLEM_H_
